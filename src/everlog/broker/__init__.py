"""broker: MQTT clients on an event loop, their messages to the log and to each other."""

from everlog.broker.broker import Broker
from everlog.broker.connection import Connection
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.passwords import delete_user, set_password
from everlog.broker.security import Security, certificate_user

__all__ = [
    "Broker",
    "Connection",
    "Limits",
    "Metrics",
    "Security",
    "certificate_user",
    "delete_user",
    "set_password",
]
