"""A blocking MQTT 5 connection for a publisher: moves the bytes of a sans-I/O `Client`, in one thread."""

import socket
import ssl
from collections.abc import Callable

from everlog.base import EverlogError, PeerError, Unavailable, UsageError
from everlog.mqtt import Client, Connack, Connect, Disconnect, Properties, Reason, RefusedPublish
from everlog.spark.sink.sink_options import Address

SESSION_EXPIRY_S = 7 * 24 * 3600  # how long the broker remembers what a publisher that died left open
ANSWER_S = 60.0  # without a word from the broker for this long, the connection counts as lost
READ_BYTES = 64 << 10
MAX_WINDOW = 65_535


class ConnectionLost(Unavailable):
    """The connection is gone or could not be made; another one may work."""


class BlockingClient:
    """An open connection; PUBRELs are sent when `session.release` is called."""

    def __init__(self, address: Address, client_id: str, *, clean_start: bool) -> None:
        connect = Connect(
            5,
            client_id,
            clean_start,
            user_name=address.user,
            password=None if address.password is None else address.password.encode(),
            properties=Properties(session_expiry_interval=SESSION_EXPIRY_S),
        )
        self.session = Client(connect, MAX_WINDOW, manual_release=True)
        self.refused: list[RefusedPublish] = []
        try:
            self._socket = _connect(address)
        except OSError as error:
            raise ConnectionLost(f"no connection to {address.host}:{address.port}: {error}") from error
        try:
            self.session.start()
            self.wait_until(lambda: self.session.connack is not None)
            assert self.session.connack is not None
            if self.session.connack.reason.is_error:
                raise _refusal(address, self.session.connack)
        except BaseException:
            self.close()
            raise
        self.session_present = self.session.connack.session_present

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Send what there is to send, and take in the broker's answers until a condition holds."""
        while True:
            if self.session.output_bytes:
                self.send(self.session.take_output())
            if done():
                return
            for event in self.session.receive(self.receive()):
                if isinstance(event, PeerError):
                    raise event
                if isinstance(event, RefusedPublish):
                    self.refused.append(event)
                elif isinstance(event, Disconnect):
                    words = event.properties.reason_string or event.reason.words
                    raise ConnectionLost(f"the broker ended the connection: {words}")

    def send(self, data: bytes) -> None:
        """Hand bytes to the network."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(f"the connection to the broker is lost: {error}") from error

    def receive(self) -> bytes:
        """Return the broker's next bytes."""
        try:
            data = self._socket.recv(READ_BYTES)
        except OSError as error:
            raise ConnectionLost(f"the connection to the broker is lost: {error}") from error
        if not data:
            raise ConnectionLost("the broker closed the connection")
        return data

    def finish(self) -> None:
        """Disconnect and have the broker forget the session."""
        self.session.disconnect(Properties(session_expiry_interval=0))
        self.send(self.session.take_output())
        self.close()

    def close(self) -> None:
        """Close the connection without a word: the broker keeps the session."""
        self._socket.close()


def _connect(address: Address) -> socket.socket:
    raw = socket.create_connection((address.host, address.port), timeout=ANSWER_S)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not address.tls:
        return raw
    try:
        return ssl.create_default_context(cafile=address.ca_file).wrap_socket(raw, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        raw.close()
        raise UsageError(
            f"the certificate of {address.host} can't be trusted: {error.verify_message}",
            hint='name who signed it with the option "caFile"',
        ) from error


def _refusal(address: Address, answer: Connack) -> EverlogError:
    """Return why a broker does not accept us; one that is too busy may be tried again."""
    words = answer.properties.reason_string or answer.reason.words
    if answer.reason in (Reason.SERVER_BUSY, Reason.SERVER_UNAVAILABLE, Reason.CONNECTION_RATE_EXCEEDED):
        return ConnectionLost(f"{address.host}:{address.port} is not ready: {words}")
    return Unavailable(f"{address.host}:{address.port} refuses the connection: {words}")
