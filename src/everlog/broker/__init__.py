"""broker: MQTT clients on an event loop, their messages to the log and to each other."""

from everlog.broker.auth import (
    Accept,
    Applicant,
    Authenticator,
    Continue,
    Credentials,
    Factory,
    Methods,
    Outcome,
    Refuse,
    ScramSha256,
    Security,
    certificate_user,
    delete_user,
    set_password,
)
from everlog.broker.broker import Broker
from everlog.broker.connection import Connection, Referral, Referrals
from everlog.broker.delivery import Log, RetainedMessages, Router, Spills
from everlog.broker.events import Event, event
from everlog.broker.expiry_clock import Belief, ExpiryClock
from everlog.broker.groups import (
    Dealers,
    Dealt,
    FarGroups,
    GroupOptions,
    GroupState,
    Seated,
    SeatMember,
    SeatNews,
)
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.registry import Claimed, ConnectTerms, Holding, Registry
from everlog.broker.reports import NO_SPACE, NOTHING, Doomed, Numbers, Reports, Survey, UnreadLoss, run_in_slices
from everlog.broker.transport import Address, Kind, Listener, Listening, cannot_listen, connect_inside, listen
