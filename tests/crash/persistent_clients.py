"""Clients that keep their side of a session while a broker is killed under them, and remember all that they saw.

A publisher numbers its messages and sends again what was not acknowledged, with DUP and its packet ids. A subscriber
acknowledges out of order, and takes a QoS 2 message once, by its packet id, as the specification has it.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from random import Random

from everlog.mqtt import (
    Connack,
    Connect,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    decode,
    encode,
    read_fixed_header,
)

WINDOW = 40


class PersistentClient(asyncio.Protocol):
    """One durable session, over as many connections as it takes."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.known = False  # the broker has acknowledged the session
        self.forgotten = 0  # how often it did not know the session any more
        self.connected = False
        self.failure: Exception | None = None  # what the broker did that no broker may do
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()

    async def stay_connected(self, port: int) -> None:
        """Connect again whenever the connection is gone."""
        loop = asyncio.get_running_loop()
        while True:
            self._data.clear()
            self._gone = asyncio.Event()
            try:
                await loop.create_connection(lambda: self, "127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
                continue
            try:
                await self._gone.wait()
            finally:
                if self._transport is not None:
                    self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        properties = Properties(session_expiry_interval=3600, receive_maximum=WINDOW)
        self.send(Connect(5, self.client_id, clean_start=False, properties=properties))

    def connection_lost(self, error: Exception | None) -> None:
        self.connected = False
        self._transport = None
        self._gone.set()

    def data_received(self, data: bytes) -> None:
        self._data += data
        at = 0
        try:
            while (header := read_fixed_header(bytes(self._data[at : at + 5]), 5)) is not None:
                first, length, size = header
                if len(self._data) - at < size + length:
                    break
                body = bytes(self._data[at + size : at + size + length])
                at += size + length
                self._take(decode(first, body, 5, from_client=False))
        except Exception as error:  # the event loop would only log it, and the client come back for more of the same
            self.failure = self.failure or error
            raise
        del self._data[:at]

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self.connected = True
            self.forgotten += self.known and not packet.session_present
            self.known = True
            self.begin()
        else:
            self.received(packet)

    def send(self, *packets: Packet) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(encode(packet, 5) for packet in packets))

    def begin(self) -> None:
        """The session goes on over a new connection."""

    def received(self, packet: Packet) -> None:
        """Something came."""


@dataclass(slots=True)
class Sent:
    """A message on its way to the broker."""

    number: int
    topic: str
    is_received: bool = False  # PUBREC came: from now on it is the PUBREL that is repeated


class Publisher(PersistentClient):
    """Publishes numbered messages, going round its topics, with a window of them under way."""

    def __init__(self, client_id: str, qos: int, topics: list[str]) -> None:
        super().__init__(client_id)
        self.qos = qos
        self.topics = topics
        self.acknowledged: set[int] = set()
        self.count = 0  # how many were sent at least once
        self.stopped = False
        self._under_way: dict[int, Sent] = {}
        self._next_id = 1

    @property
    def is_done(self) -> bool:
        return self.stopped and not self._under_way

    def begin(self) -> None:
        for packet_id, sent in self._under_way.items():
            self.send(Pubrel(packet_id) if sent.is_received else self._publish(packet_id, sent, True))
        self._fill()

    def received(self, packet: Packet) -> None:
        if isinstance(packet, Puback | Pubcomp):
            sent = self._under_way.pop(packet.packet_id, None)
            if sent is not None:
                self.acknowledged.add(sent.number)
            self._fill()
        elif isinstance(packet, Pubrec):
            assert packet.packet_id in self._under_way, f"{packet} for nothing that was sent"
            self._under_way[packet.packet_id].is_received = True
            self.send(Pubrel(packet.packet_id))

    def _fill(self) -> None:
        packets = []
        while not self.stopped and len(self._under_way) < WINDOW:
            sent = Sent(self.count, self.topics[self.count % len(self.topics)])
            while self._next_id in self._under_way:
                self._next_id = self._next_id % 65_535 + 1
            self._under_way[self._next_id] = sent
            packets.append(self._publish(self._next_id, sent, False))
            self._next_id = self._next_id % 65_535 + 1
            self.count += 1
        self.send(*packets)

    def _publish(self, packet_id: int, sent: Sent, dup: bool) -> Publish:
        payload = f"{self.client_id} {sent.number}".encode()
        return Publish(sent.topic, payload, qos=self.qos, packet_id=packet_id, dup=dup)


@dataclass(frozen=True, slots=True)
class Seen:
    """A message as a subscriber got it."""

    publisher: str
    number: int
    topic: str
    dup: bool


class Subscriber(PersistentClient):
    """Takes everything that matches its filter, and acknowledges some of it late and out of order."""

    def __init__(self, client_id: str, filter: str, qos: int, random: Random) -> None:
        super().__init__(client_id)
        self.filter = filter
        self.qos = qos
        self.seen: list[Seen] = []
        self.distinct: set[tuple[str, int]] = set()  # publishers and numbers of those
        self.is_subscribed = asyncio.Event()
        self._random = random
        self._unreleased: set[int] = set()
        self._late: list[Packet] = []

    def begin(self) -> None:
        self._late.clear()  # what was not acknowledged comes again
        if not self.is_subscribed.is_set():
            self.send(Subscribe(1, (Subscription(self.filter, self.qos),)))

    def received(self, packet: Packet) -> None:
        if isinstance(packet, Suback):
            self.is_subscribed.set()
        elif isinstance(packet, Publish):
            self._take_message(packet)
        elif isinstance(packet, Pubrel):
            self._unreleased.discard(packet.packet_id)
            self.send(Pubcomp(packet.packet_id))

    def _take_message(self, packet: Publish) -> None:
        if packet.qos == 2 and packet.packet_id in self._unreleased:
            assert packet.dup, "a packet id that is in use, without DUP"
        else:
            publisher, number = packet.payload.decode().split()
            self.seen.append(Seen(publisher, int(number), packet.topic, packet.dup))
            self.distinct.add((publisher, int(number)))
        if packet.qos == 2:
            self._unreleased.add(packet.packet_id)
        if packet.qos:
            self._late.append((Pubrec if packet.qos == 2 else Puback)(packet.packet_id))
        if self._random.random() < 0.2 or len(self._late) >= WINDOW:
            if self._random.random() < 0.3:
                self._random.shuffle(self._late)
            self.acknowledge()

    def state(self) -> str:
        """What is not done of what came."""
        return f"{len(self.seen)} came, {len(self._late)} to acknowledge, {len(self._unreleased)} not released"

    def acknowledge(self) -> None:
        """Acknowledge all that waits for it."""
        late, self._late = self._late, []
        self.send(*late)


@contextlib.asynccontextmanager
async def connected(clients: list[PersistentClient], port: int):
    """The clients stay connected until the block ends."""
    tasks = [asyncio.create_task(client.stay_connected(port)) for client in clients]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
