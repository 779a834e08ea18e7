"""The output of a connection: packets, those that must wait for the session tables, and peers that do not read.

Beyond `limits.output_bytes` unsent, a session is handed no more messages; beyond twice that, which only acks can fill,
nothing more is read from a peer that does not read either. `hold` is the gate for what may leave only after something
is in the tables; whatever is sent behind it waits too, in order. Owned by the event loop's thread.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import cython

from everlog.broker.registry import WriteBehind
from everlog.mqtt import NO_PROPERTIES, Connect, Packet, Properties, encode_within
from everlog.sessions import Packets, Session

if not cython.compiled:
    from everlog.broker.connection.raw_socket import send as send_parts
    from everlog.broker.connection.traffic import Traffic
    from everlog.broker.connection.wire import Wire

_REASON_CHARACTERS = 500  # of a reason string; the rest is left out
_UNKNOWN = -2
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_FLUSH_S = 5.0  # a peer that does not read what was written before the end is cut off then


class Held:
    """Bytes with the batch of the tables that each waits for; an output has one while there are any."""

    __slots__ = ("entries", "full", "has_connack", "has_messages", "size_bytes", "ticket")

    def __init__(self) -> None:
        self.entries: deque[tuple[int, bytes]] = deque()
        self.ticket = 0
        self.size_bytes = 0
        self.full = False
        self.has_connack = False
        self.has_messages = False  # that others must not overtake


class Output:
    """The writing half of one connection."""

    def __init__(self, traffic: Traffic, write_behind: WriteBehind | None, max_bytes: int) -> None:
        self.traffic = traffic
        self.transport: Any = None  # set by `begin`
        self._wire: Wire | None = None  # the same, if it is one of our own
        self.session: Session | None = None
        self.connect: Connect | None = None
        self.version = 0  # of the protocol, once a CONNECT has said it
        self.is_closing = False
        self.is_full = False  # more than limits.output_bytes has not been sent
        self.open_qos_1 = 0  # messages of the client not yet answered
        self.on_free: Callable[[], None] | None = None  # called when the peer has read what was sent
        self._write_behind = write_behind
        self._max_bytes = max_bytes
        self._fd = _UNKNOWN  # of the socket that parts are sent to, -1 if they can't be
        self._held: Held | None = None
        self._early: deque[tuple[int, bytes]] | None = None  # what waits for room, with the batch that has its id

    def begin(self, transport: Any) -> None:
        """Send by a transport from now on."""
        self.transport = transport
        if isinstance(transport, Wire):
            self._wire = transport

    def end(self) -> None:
        """Send nothing more: the transport is gone."""
        self.transport = self._wire = None

    def write(self, data: Packets) -> None:
        """Send bytes, or parts of packets, unless the connection is gone."""
        session = self.session
        if session is not None and session.ahead:  # [MQTT-4.3.3-1] an id is in the tables before the client sees it
            session.take_ahead()
            self.hold()
        if isinstance(data, bytes):
            self._put(data)
        else:
            self._put_parts(data)
        if self._held is not None:
            self._held.has_messages = True
        if session is not None and session.early_packets:
            self._keep_early(session)

    def write_acks(self, acks: bytes) -> None:
        """Send acks, which messages may overtake."""
        self._put(acks)

    def answer(self, acks: bytes, pubacks: int) -> None:
        """Send acks that had to wait for a commit; `pubacks` of them end a QoS 1 message."""
        self.open_qos_1 -= pubacks
        self._put(acks)

    def _put(self, data: bytes) -> int:
        if self._held is not None:
            self._add(self._held, data)
        elif self.transport is not None and not self.is_closing:
            self._pass_on(data)
        return 0

    def _pass_on(self, data: bytes) -> int:
        """Hand bytes to the transport, which is there."""
        self.traffic.bytes_out += len(data)
        if self._wire is not None:
            self._wire.write(data)
        else:
            self.transport.write(data)
        return 0

    def _put_parts(self, parts: list[bytes | memoryview]) -> int:
        """Send parts without a copy if nothing waits to be sent; what the socket does not take is copied.

        So nobody who does not read holds the batches that the parts are of.
        """
        transport = self.transport
        sent = 0
        if self._held is None and self._wire is not None and not self.is_closing:
            sent = self._wire.send_parts(parts)
            self.traffic.bytes_out += sent
            if sent == sum(map(len, parts)):
                return 0
        elif self._held is None and transport is not None and not self.is_closing:
            if self._fd == _UNKNOWN:
                self._fd = _plain_socket(transport)
                if self._fd < 0 and self.session is not None:
                    self.session.scatter(False)
            if self._fd >= 0 and transport.get_write_buffer_size() == 0:
                sent = max(0, send_parts(self._fd, parts, 0))  # whoever writes the rest is told of an error
                self.traffic.bytes_out += sent
                if sent == sum(map(len, parts)):
                    return 0
        return self._put(b"".join(parts)[sent:])

    def send(self, packet: Packet) -> None:
        """Send a control packet, unless it is too large for the client."""
        data = self.encoded(packet)
        if data is not None:
            self.write(data)

    def encoded(self, packet: Packet) -> bytes | None:
        """Return the packet's bytes, without what is optional if that makes it too large; None if it is even so."""
        limit = self.connect.properties.maximum_packet_size if self.connect is not None else None
        return encode_within(packet, self.version or 4, limit)

    @property
    def tells_problems(self) -> bool:
        """Whether the client's version can be told why something was refused, and it wants to know."""
        connect = self.connect  # [MQTT-3.1.2-29]
        return self.version == 5 and (connect is None or connect.properties.request_problem_information != 0)

    def has_room_for(self, size: int) -> bool:
        """Return whether a packet of so many bytes may be sent to the client [MQTT-3.1.2-24]."""
        limit = self.connect.properties.maximum_packet_size if self.connect is not None else None
        return limit is None or size <= limit

    def explain(self, why: str) -> Properties:
        """Return why something was refused, in words, for a client that can be told."""
        return Properties(reason_string=why[:_REASON_CHARACTERS]) if why and self.tells_problems else NO_PROPERTIES

    # What waits for the session tables

    def hold(self) -> None:
        """Let what is sent from now on leave when all that has changed so far is stored."""
        write_behind, session = self._write_behind, self.session
        if write_behind is None or session is None:
            return
        if session.kept:
            write_behind.moved.add(session)
        held = self._held
        if held is None:
            held = self._held = Held()
        ticket = write_behind.ticket()
        if ticket != held.ticket:
            held.ticket = ticket
            write_behind.when_durable(partial(self._release, held))

    def hold_connack(self) -> None:
        """Note that what is held begins with the CONNACK, which nothing overtakes."""
        if self._held is not None:
            self._held.has_connack = True

    def overtake(self) -> bool:
        """Give up what is held, which is sent again when the client is back; return whether that may be."""
        if self._held is not None and self._held.has_connack:
            return False
        self._held = None
        return True

    def _add(self, held: Held, data: bytes) -> None:
        """Let bytes leave in their turn; beyond the output limit the session is handed nothing more."""
        held.entries.append((held.ticket, data))
        held.size_bytes += len(data)
        if held.size_bytes > self._max_bytes and not held.full:
            held.full = True
            self.pause_writing()

    def _release(self, held: Held) -> None:
        """Send what is stored by now; if that was all, the next bytes need not wait."""
        assert self._write_behind is not None
        saved, ready = self._write_behind.saved, []
        while held.entries and held.entries[0][0] <= saved:
            ready.append(held.entries.popleft()[1])
        held.has_connack = held.has_connack and not ready
        data = b"".join(ready)
        held.size_bytes -= len(data)
        if self._held is not held:
            return
        if held.ticket <= saved:
            self._held = None
        if self.transport is None or self.is_closing:
            return
        self._pass_on(data)
        if held.full and held.size_bytes == 0 and self.transport.get_write_buffer_size() <= self._max_bytes:
            held.full = False
            self.resume_writing()

    # What is made ahead of its turn

    def _keep_early(self, session: Session) -> None:
        """Keep packets until the client's window has room, by when the next batch of the tables may have their ids."""
        assert self._write_behind is not None
        packets = session.take_early_packets()
        self._write_behind.moved.add(session)
        batch = self._write_behind.next_batch()
        self._early_of(session, len(packets)).extend((batch, data) for data in packets)

    def _early_of(self, session: Session, new: int) -> deque[tuple[int, bytes]]:
        """Return what is kept, without what the session has forgotten."""
        early = self._early = self._early or deque()
        while len(early) + new > session.early:
            early.popleft()
        return early

    def send_early(self) -> None:
        """Send what there is room for now; it overtakes acks that wait for the tables if its own ids are there."""
        session, write_behind = self.session, self._write_behind
        if session is None or write_behind is None:
            return
        early = self._early_of(session, 0)
        ready = []
        while session.send_early():
            batch, data = early.popleft()
            held = self._held
            if batch <= write_behind.saved and (held is None or not (held.has_messages or held.has_connack)):
                ready.append(data)
                continue
            if held is None:
                held = self._held = Held()
            if batch > held.ticket:
                held.ticket = write_behind.when_saved(batch, partial(self._release, held))
            held.has_messages = True
            self._add(held, data)
        if ready and self.transport is not None and not self.is_closing:
            self._pass_on(b"".join(ready))

    # What asyncio calls

    def pause_writing(self) -> None:
        """Leave messages where they are: the client does not read as fast as it is sent to."""
        self.is_full = True
        if self.session is not None and not self.is_closing:
            self.session.set_ready(False)

    def resume_writing(self) -> None:
        """Go on: the client has caught up with what was sent."""
        self.is_full = False
        session = self.session
        if session is not None and not self.is_closing:
            session.set_ready(True)
            self.traffic.router.pump(session)
        if not self.is_full and self.on_free is not None:
            self.on_free()

    def confirm_receipt(self) -> None:
        """Have TCP confirm at once what has arrived, since no answer will."""
        if self._wire is not None:
            self._wire.confirm_receipt()
        elif self.transport is not None:
            wire = self.transport.get_extra_info("socket")
            if wire is not None and _QUICK_ACK is not None and wire.family in _INTERNET:
                wire.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    # The end

    def is_stuck(self) -> bool:
        """Return whether so much has not been sent that nothing more should be read."""
        return self.is_full and self.unsent_bytes() > 2 * self._max_bytes

    def unsent_bytes(self) -> int:
        """Return how much was written and has not left."""
        held = 0 if self._held is None else self._held.size_bytes
        if self._wire is not None:
            return held + self._wire.get_write_buffer_size()
        return held if self.transport is None else held + int(self.transport.get_write_buffer_size())

    def close(self) -> None:
        """Send no more; what was written still leaves, for a while."""
        self.is_closing = True
        transport = self.transport
        if transport is not None:
            transport.close()
            if transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(_FLUSH_S, transport.abort)


def _plain_socket(transport: Any) -> int:
    """Return the file number of a transport's socket if it sends bytes as they are, else -1."""
    if not hasattr(transport, "writelines") or transport.get_extra_info("sslcontext") is not None:
        return -1  # a WebSocket, or TLS
    wire = transport.get_extra_info("socket")
    return -1 if wire is None else int(wire.fileno())
