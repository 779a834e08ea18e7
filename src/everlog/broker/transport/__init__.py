"""transport: where clients connect, over TCP, TLS, WebSocket or both."""

from everlog.broker.transport.inner import connect_inside
from everlog.broker.transport.listeners import Address, Kind, Listener, Listening, cannot_listen, listen
