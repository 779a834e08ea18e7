"""registry: who has which session, until when, subscribed to what, and what of that is stored."""

from everlog.broker.registry.connect_terms import Agreements, ConnectTerms, bridge_state
from everlog.broker.registry.holding import Claimed, Holding
from everlog.broker.registry.registry import Registry
from everlog.broker.registry.replay_request import Answer, ReplayRequests
from everlog.broker.registry.restore import restore_sessions
from everlog.broker.registry.subscriptions import Subscriptions
from everlog.broker.registry.write_behind import WriteBehind
