"""A connection to a broker that publishes: MQTT 5, blocking, one thread. The protocol is everlog.mqtt's."""

import socket
import ssl
from collections.abc import Callable

from everlog.base import EverlogError, PeerError, Unavailable, UsageError
from everlog.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Pubrec,
    Reason,
    decode,
    encode,
    read_fixed_header,
)
from everlog.spark.sink.sink_options import Address

VERSION = 5
SESSION_EXPIRY_S = 7 * 24 * 3600  # what a publisher that died left open is known for
ANSWER_S = 60.0  # without a word from the broker for so long, the connection counts as lost
READ_BYTES = 64 << 10


class LinkLost(Unavailable):
    """The connection is gone, or could not be made: another one may do."""


class Link:
    """An open connection and what the broker said about it."""

    def __init__(self, address: Address, client_id: str, *, clean_start: bool) -> None:
        self._buffer = bytearray()
        try:
            self._socket = _dial(address)
        except OSError as error:
            raise LinkLost(f"no connection to {address.host}:{address.port}: {error}") from error
        try:
            answer = self._greet(address, client_id, clean_start)
        except BaseException:
            self.close()
            raise
        said = answer.properties
        self.session_present = answer.session_present
        self.receive_maximum = 65_535 if said.receive_maximum is None else said.receive_maximum
        self.max_packet_bytes = said.maximum_packet_size
        self.max_qos = 2 if said.maximum_qos is None else said.maximum_qos

    def _greet(self, address: Address, client_id: str, clean_start: bool) -> Connack:
        connect = Connect(
            VERSION,
            client_id,
            clean_start,
            user_name=address.user,
            password=None if address.password is None else address.password.encode(),
            properties=Properties(session_expiry_interval=SESSION_EXPIRY_S),
        )
        self.send(encode(connect, VERSION))
        answer = self.receive()
        if isinstance(answer, Connack) and not answer.reason.is_error:
            return answer
        raise _refusal(address, answer)

    def send(self, data: bytes) -> None:
        """Hand bytes to the network."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise LinkLost(f"the connection to the broker is lost: {error}") from error

    def receive(self) -> Packet:
        """The next packet of the broker."""
        while True:
            head = read_fixed_header(bytes(self._buffer[:5]), VERSION) if len(self._buffer) > 1 else None
            if head is not None and len(self._buffer) >= head[2] + head[1]:
                first, size, before = head
                body = bytes(self._buffer[before : before + size])
                del self._buffer[: before + size]
                return decode(first, body, VERSION, from_client=False)
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError as error:
                raise LinkLost(f"the connection to the broker is lost: {error}") from error
            if not data:
                raise LinkLost("the broker closed the connection")
            self._buffer += data

    def await_answers(
        self,
        kind: type[Puback] | type[Pubrec] | type[Pubcomp] | tuple[type, ...],
        expected: set[int],
        taken: Callable[[int, Reason], None],
    ) -> None:
        """Wait for an answer to each packet id."""
        while expected:
            packet = self.receive()
            if isinstance(packet, Disconnect):
                raise LinkLost(f"the broker ended the connection: {_words(packet.reason, packet.properties)}")
            if isinstance(packet, kind) and isinstance(packet, (Puback, Pubrec, Pubcomp)):
                taken(packet.packet_id, packet.reason)
                expected.discard(packet.packet_id)

    def finish(self) -> None:
        """Say goodbye; the broker forgets the session."""
        self.send(encode(Disconnect(properties=Properties(session_expiry_interval=0)), VERSION))
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        self._socket.close()


def _dial(address: Address) -> socket.socket:
    raw = socket.create_connection((address.host, address.port), timeout=ANSWER_S)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not address.tls:
        return raw
    try:
        return ssl.create_default_context(cafile=address.ca_file).wrap_socket(raw, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        raw.close()
        raise UsageError(
            f"the certificate of {address.host} is not to be trusted: {error.verify_message}",
            hint='name who signed it with the option "caFile"',
        ) from error


def _refusal(address: Address, answer: Packet) -> EverlogError:
    """Why a broker does not take us; one that is too busy may be tried again."""
    if not isinstance(answer, Connack):
        return PeerError(Reason.PROTOCOL_ERROR, f"{address.host}:{address.port} answers with a {answer.type.name}")
    words = _words(answer.reason, answer.properties)
    if answer.reason in (Reason.SERVER_BUSY, Reason.SERVER_UNAVAILABLE, Reason.CONNECTION_RATE_EXCEEDED):
        return LinkLost(f"{address.host}:{address.port} is not ready: {words}")
    return Unavailable(f"{address.host}:{address.port} refuses the connection: {words}")


def _words(reason: Reason, properties: Properties) -> str:
    return properties.reason_string or reason.name.lower().replace("_", " ")
