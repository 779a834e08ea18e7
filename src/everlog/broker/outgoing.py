"""What leaves a connection: packets, what must wait for the disk first, and what happens when nobody reads.

The half of `Connection` that others write to. Beyond `limits.output_bytes` unsent, a session is handed no more
messages; beyond twice that, which only answers can fill, nothing more is read from a peer that does not read either.
"""

import asyncio
from typing import TYPE_CHECKING

from everlog.broker.outbox import Outbox
from everlog.broker.wire import Wire
from everlog.mqtt import (
    NO_PROPERTIES,
    Connect,
    Decoder,
    Packet,
    Properties,
    State,
    encode,
    without_optional,
)

if TYPE_CHECKING:
    from everlog.broker.broker import Broker

_REASON_CHARACTERS = 500  # of a reason string; the rest is left out
_FLUSH_S = 5.0  # a peer that does not read what was written before the end is cut off then


class Outgoing(Wire, asyncio.BufferedProtocol):
    """The writing half of one connection."""

    __slots__ = ("_paused", "connect")

    def __init__(self, broker: "Broker") -> None:
        limits = broker.limits
        decoder = Decoder(
            broker.columns,
            broker.table,
            limits.packet_bytes,
            limits.topic_aliases,
            max_topic_bytes=limits.topic_bytes,
            max_topic_levels=limits.topic_levels,
            max_topics=limits.topics_per_client,
            carried=broker.carried,
        )
        super().__init__(broker, broker.traffic, decoder)
        self.connect: Connect | None = None
        self._paused = False

    # What asyncio calls

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent to: leave its messages where they are."""
        self._full = True
        if self.session is not None and self.state is not State.CLOSING:
            self.session.ready = False

    def resume_writing(self) -> None:
        """The client has caught up with what was sent."""
        self._full = False
        if self.session is not None and self.state is not State.CLOSING:
            self.session.ready = True
            self.broker.router.pulling.pump(self.session)
            if self.session.memberships:
                self.broker.groups.pump(self.session)
        if not self._full:
            self.caught_up()

    def caught_up(self) -> None:
        """What was sent has left; the reading half may have waited for that."""

    # What the rest of the broker calls

    def hold(self) -> None:
        """What is sent from now on leaves when all that has changed so far is stored."""
        persistence, session = self.broker.persistence, self.session
        if persistence is None or session is None:
            return
        if session.kept:
            persistence.moved.add(session)
        if self._outbox is None:
            self._outbox = Outbox(self, persistence)
        self._outbox.wait()

    def released(self, outbox: Outbox, data: bytes, all_of_it: bool) -> None:
        """Bytes that waited may leave; if that was all, the next ones need not wait."""
        if self._outbox is not outbox:
            return
        if all_of_it:
            self._outbox = None
        if self.transport is None or self.state is State.CLOSING:
            return
        self.traffic.bytes_out += len(data)
        self.transport.write(data)
        limit = self.broker.limits.output_bytes
        if outbox.full and outbox.bytes == 0 and self.transport.get_write_buffer_size() <= limit:
            outbox.full = False
            self.resume_writing()

    def send(self, packet: Packet) -> None:
        """Send a control packet, unless it is too large for the client."""
        data = self.encoded(packet)
        if data is not None:
            self.write(data)

    def encoded(self, packet: Packet) -> bytes | None:
        """The packet's bytes, without what is optional if that makes it too large; None if it is even so."""
        version = self.decoder.version or 4
        data = encode(packet, version)
        limit = self.connect.properties.maximum_packet_size if self.connect is not None else None
        if limit is not None and len(data) > limit:  # [MQTT-3.1.2-24]
            data = encode(without_optional(packet), version)  # [MQTT-3.2.2-19] and its like in every answer
        return data if limit is None or len(data) <= limit else None

    def explain(self, why: str) -> Properties:
        """Why something was refused, in words, for a client whose version can be told and that wants to know."""
        if self.decoder.version != 5 or not why:
            return NO_PROPERTIES
        if self.connect is not None and self.connect.properties.request_problem_information == 0:
            return NO_PROPERTIES  # [MQTT-3.1.2-29]
        return Properties(reason_string=why[:_REASON_CHARACTERS])

    def pause_reading(self) -> None:
        """Too much is under way: let the peer wait."""
        if not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """The broker can take more."""
        if self._paused and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()

    def unsent_bytes(self) -> int:
        """What was written and has not left."""
        waiting = 0 if self._outbox is None else self._outbox.bytes
        return waiting if self.transport is None else waiting + self.transport.get_write_buffer_size()

    def end(self) -> None:
        """No more is read; what was written still leaves, for a while."""
        self.is_open = False
        if self.transport is not None:
            self.transport.close()
            if self.transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(_FLUSH_S, self.transport.abort)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Where a peer connects from, for the log."""
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "local")
