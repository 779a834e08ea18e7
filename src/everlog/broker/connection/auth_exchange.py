"""Enhanced authentication on the wire: CONNECT, AUTH and CONNACK around the steps of a method (section 4.12).

Before the CONNACK an exchange ends with the client accepted or the connection refused; on an open connection, with an
AUTH that says success or with DISCONNECT. Until then an open client goes on as who it was.
"""

import logging
from collections.abc import Callable
from logging import ERROR, WARNING
from typing import NoReturn

from everlog.base import PeerError
from everlog.broker.auth import Accept, Applicant, Continue, Outcome, Refuse, Security
from everlog.broker.connection.connection import Connection
from everlog.broker.events import event as report
from everlog.broker.metrics import Metrics
from everlog.mqtt import Auth, Event, Properties, Reason, next_state

_log = logging.getLogger("everlog.broker")


class AuthExchange:
    """The steps of a method with each client; `accepted` is called with those that have proven who they are."""

    def __init__(
        self, security: Security, metrics: Metrics, accepted: Callable[[Connection, str, Properties], None]
    ) -> None:
        self._security = security
        self._metrics = metrics
        self._accepted = accepted

    def begin(self, connection: Connection, properties: Properties) -> None:
        """Take a CONNECT with a method, or an AUTH of a client that is in and authenticates again."""
        connect, method = connection.connect, properties.authentication_method
        assert connect is not None
        assert method is not None
        exchange = self._security.exchange(method)
        if exchange is None:
            raise PeerError(Reason.BAD_AUTHENTICATION_METHOD, "no such authentication method", clause="MQTT-4.12.0-1")
        certified = connection.user if connection.session is None else None
        applicant = Applicant(connect.client_id, connection.peer, connect.user_name, connect.password, certified)
        connection.exchange = exchange
        self._follow(connection, lambda: exchange.begin(method, properties.authentication_data, applicant))

    def go_on(self, connection: Connection, packet: Auth) -> None:
        """Take an AUTH: a further step, or the first of another authentication."""
        connect, properties = connection.connect, packet.properties
        assert connect is not None  # the state table has seen to it
        method = connect.properties.authentication_method
        if properties.authentication_method != method:
            clause = "MQTT-4.12.0-5" if connection.session is None else "MQTT-4.12.1-1"
            raise PeerError(Reason.PROTOCOL_ERROR, f"an AUTH of another method than {method}", clause=clause)
        if packet.reason is Reason.RE_AUTHENTICATE:
            self.begin(connection, properties)
            return
        exchange = connection.exchange
        assert exchange is not None  # the state table again: only what was begun goes on
        self._follow(connection, lambda: exchange.step(properties.authentication_data))

    def _follow(self, connection: Connection, ask: Callable[[], Outcome]) -> None:
        """Ask the method for its next step and take it."""
        try:
            outcome = ask()
        except PeerError as error:
            outcome = Refuse(Reason(error.reason), error.message)
        except Exception as error:  # noqa: BLE001 - the method is somebody else's code: its fault costs this client alone
            report(_log, "authentication_method_failed", ERROR, peer=connection.peer, reason=repr(error))
            outcome = Refuse(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "the authentication method failed")
        match outcome:
            case Continue(data):
                connection.state = next_state(connection.state, Event.CHALLENGE)
                answer = Auth(Reason.CONTINUE_AUTHENTICATION, _properties(connection, data))  # [MQTT-4.12.0-2]
                connection.output.send(answer)
            case Accept(user, data):
                connection.exchange = None
                self._accept(connection, user, _properties(connection, data))
            case Refuse(reason, why):
                connection.exchange = None
                self._refuse(connection, reason, why)

    def _accept(self, connection: Connection, user: str, properties: Properties) -> None:
        proof = properties.authentication_method or ""
        if not self._security.still_knows(user, proof):
            self._refuse(connection, Reason.NOT_AUTHORIZED, "the user was deleted")
        if connection.session is None:
            connection.proof = proof
            self._accepted(connection, user, properties)  # [MQTT-4.12.0-5]
            return
        if user != connection.user:
            self._refuse(connection, Reason.NOT_AUTHORIZED, "the user is not the one that is connected")
        connection.state = next_state(connection.state, Event.CONFIRM)
        connection.output.send(Auth(Reason.SUCCESS, properties))

    def _refuse(self, connection: Connection, reason: Reason, why: str) -> NoReturn:
        """End the connection [MQTT-4.12.0-4] [MQTT-4.12.1-2]; a DISCONNECT has fewer reasons than a CONNACK."""
        self._metrics.auth_failures += 1
        client = connection.connect.client_id if connection.connect is not None else None
        report(_log, "auth_failed", WARNING, client=client, peer=connection.peer, user=connection.user, reason=why)
        raise PeerError(reason if connection.session is None else Reason.NOT_AUTHORIZED, why)


def _properties(connection: Connection, data: bytes | None) -> Properties:
    assert connection.connect is not None
    method = connection.connect.properties.authentication_method
    return Properties(authentication_method=method, authentication_data=data)
