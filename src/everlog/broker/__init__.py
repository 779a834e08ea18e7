"""broker: MQTT clients on an event loop, their messages to the log and to each other."""

from everlog.broker.authentication import (
    Accept,
    Applicant,
    Authenticator,
    Continue,
    Credentials,
    Factory,
    Methods,
    Outcome,
    Refuse,
)
from everlog.broker.broker import Broker
from everlog.broker.connection import Connection
from everlog.broker.durablegroup import GroupState
from everlog.broker.events import Event, event
from everlog.broker.limits import Limits
from everlog.broker.listeners import Address, Kind, Listener, Listening, cannot_listen, listen
from everlog.broker.metrics import Metrics
from everlog.broker.passwords import delete_user, set_password
from everlog.broker.retention import Doomed, RetentionState, look_in_steps, tell_in_steps
from everlog.broker.scram import ScramSha256
from everlog.broker.security import Security, certificate_user
from everlog.broker.sharedgroups import GroupOptions
from everlog.broker.survey import Survey, Surveyor
from everlog.broker.sysinfo import SysTopics

__all__ = [
    "Accept",
    "Address",
    "Applicant",
    "Authenticator",
    "Broker",
    "Connection",
    "Continue",
    "Credentials",
    "Doomed",
    "Event",
    "Factory",
    "GroupOptions",
    "GroupState",
    "Kind",
    "Limits",
    "Listener",
    "Listening",
    "Methods",
    "Metrics",
    "Outcome",
    "Refuse",
    "RetentionState",
    "ScramSha256",
    "Security",
    "Survey",
    "Surveyor",
    "SysTopics",
    "cannot_listen",
    "certificate_user",
    "delete_user",
    "event",
    "listen",
    "look_in_steps",
    "set_password",
    "tell_in_steps",
]
