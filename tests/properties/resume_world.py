"""A durable publisher and a durable subscriber that live on while one broker after the other is crashed under them.

Both keep their side of the session as a real client does, and remember what their applications were told. Every step is
chosen by the test, so that a crash can come between any two of them.
"""

from collections import Counter
from random import Random

from tests.stepped_broker import SteppedBroker, Wire, new_disk

from everlog.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    Subscription,
)

TOPICS = ("t/0", "t/1", "t/2/3")


class Client:
    """One durable session, over as many connections as it takes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wire: Wire | None = None
        self.is_open = False
        self.known = False  # the broker has acknowledged the session
        self.maximum = 5

    def connect(self, broker: SteppedBroker) -> None:
        """Connect, whether or not a connection is left."""
        self.wire, self.is_open = broker.connect(), False
        properties = Properties(session_expiry_interval=3600, receive_maximum=self.maximum)
        self.wire.send(Connect(5, self.name, clean_start=False, properties=properties))

    def drop(self) -> None:
        """Lose the connection."""
        if self.wire is not None:
            self.wire.close()
        self.lost()

    def lost(self) -> None:
        self.wire, self.is_open = None, False

    def send(self, *packets: Packet) -> None:
        if self.wire is not None:
            self.wire.send(*packets)

    def receive(self) -> bool:
        """Take one packet; whether there was one."""
        packet = None if self.wire is None else self.wire.receive()
        if packet is None:
            return False
        if isinstance(packet, Connack):
            assert packet.reason == Reason.SUCCESS
            assert packet.session_present or not self.known, f"{self.name} is not known any more"
            self.known = self.is_open = True
            self.begin()
        elif isinstance(packet, Disconnect):
            self.drop()
        else:
            self.take(packet)
        return True

    def begin(self) -> None:
        """The session goes on over a new connection."""

    def take(self, packet: Packet) -> None:
        """Something has come."""


class Publisher(Client):
    """Publishes numbered messages, and sends again what was not acknowledged."""

    def __init__(self, name: str, qos: int, topics: tuple[str, ...] = TOPICS, retain: bool = False) -> None:
        super().__init__(name)
        self.qos = qos
        self.topics = topics
        self.retain = retain
        self.count = 0
        self.acknowledged: set[int] = set()
        self.under_way: dict[int, tuple[int, bool]] = {}  # packet id -> message, and whether its PUBREC has come

    def publish(self) -> None:
        """Send the next message."""
        packet_id = next(n for n in range(1, 100) if n not in self.under_way)
        self.under_way[packet_id] = (self.count, False)
        self.count += 1
        if self.is_open:
            self._send(packet_id, False)

    def _send(self, packet_id: int, dup: bool) -> None:
        number, is_received = self.under_way[packet_id]
        payload = b"%s %d" % (self.name.encode(), number)
        topic = self.topics[number % len(self.topics)]
        message = Publish(topic, payload, self.qos, self.retain, dup, packet_id)
        self.send(Pubrel(packet_id) if is_received else message)

    def begin(self) -> None:
        for packet_id, _ in sorted(self.under_way.items(), key=lambda entry: entry[1][0]):
            self._send(packet_id, True)

    def take(self, packet: Packet) -> None:
        assert isinstance(packet, Puback | Pubrec | Pubcomp), packet
        number, _ = self.under_way.get(packet.packet_id, (-1, False))
        if isinstance(packet, Pubrec):
            assert number >= 0, f"{packet} for nothing that was sent"
            self.acknowledged.add(number)
            self.under_way[packet.packet_id] = (number, True)
            self.send(Pubrel(packet.packet_id))
        elif number >= 0:
            self.acknowledged.add(number)
            del self.under_way[packet.packet_id]


class Subscriber(Client):
    """Takes what comes; `answers` wait until the test has them sent."""

    def __init__(self, name: str, qos: int, maximum: int) -> None:
        super().__init__(name)
        self.qos = qos
        self.maximum = maximum
        self.filters: tuple[str, ...] = ("t/#",)
        self.is_subscribed = False
        self.subscribes_again = False  # on each connection, as many clients do
        self.seen: list[bytes] = []
        self.unreleased: dict[int, bytes] = {}
        self.answers: list[Packet] = []
        self.open_ids: set[int] = set()  # of this connection, not answered to the end

    def begin(self) -> None:
        self.answers.clear()  # what was not acknowledged comes again
        self.open_ids.clear()
        if not self.is_subscribed or self.subscribes_again:
            # retained messages come with a new subscription alone: each once, however often this is sent
            self.send(Subscribe(1, tuple(Subscription(text, self.qos, retain_handling=1) for text in self.filters)))

    def lost(self) -> None:
        super().lost()
        self.answers.clear()

    def answer(self, place: int) -> None:
        """Send one of the answers that wait."""
        answer = self.answers.pop(place % len(self.answers))
        if isinstance(answer, Puback | Pubcomp):
            self.open_ids.discard(answer.packet_id)
        self.send(answer)

    def take(self, packet: Packet) -> None:
        if isinstance(packet, Suback):
            self.is_subscribed = True
        elif isinstance(packet, Pubrel):
            self.unreleased.pop(packet.packet_id, None)
            self.answers.append(Pubcomp(packet.packet_id))
        else:
            assert isinstance(packet, Publish), packet
            self._take(packet)

    def _take(self, packet: Publish) -> None:
        known = self.unreleased.get(packet.packet_id) if packet.qos == 2 else None
        if known is not None:
            assert (packet.payload, packet.dup) == (known, True), f"{packet} while {self.unreleased}"
        else:
            self.seen.append(packet.payload)
        if packet.qos == 2:
            self.unreleased[packet.packet_id] = packet.payload
        self.answers.append((Pubrec if packet.qos == 2 else Puback)(packet.packet_id))
        self.open_ids.add(packet.packet_id)
        assert len(self.open_ids) <= self.maximum, f"{self.open_ids} are more than the Receive Maximum"


class World:
    """One broker after another, and the clients of all."""

    def __init__(
        self,
        seed: int,
        *,
        publish_qos: int = 2,
        qos: int = 2,
        maximum: int = 3,
        shards: int = 1,
        retained: int = 0,
        room: int = 1 << 20,
    ) -> None:
        self.random = Random(seed)
        self.shards = shards
        self.broker = SteppedBroker(new_disk(seed), shards=shards, room=room)
        self.publisher = Publisher("p", publish_qos)
        self.subscriber = Subscriber("s", qos, maximum)
        self.clients: tuple[Client, ...] = (self.subscriber, self.publisher)
        self.lives = 1
        self.steps = 0
        self.retained = [b"r %d" % number for number in range(retained)]
        if retained:
            self._retain(retained)

    def _retain(self, count: int) -> None:
        """Have so many retained messages before anything else."""
        one = Publisher("r", self.publisher.qos, tuple(f"t/{number}/r" for number in range(count)), retain=True)
        for _ in range(count):
            one.publish()
        one.connect(self.broker)
        while len(one.acknowledged) < count:
            assert one.wire is not None
            one.wire.deliver()
            self._finish_jobs()
            while one.receive():
                pass
        one.drop()
        self._finish_jobs()

    def _finish_jobs(self) -> None:
        for _ in range(4):
            self.broker.turn()
            while self.broker.loop.jobs:
                self.broker.loop.work()
            while self.broker.asked:
                self.broker.commit()

    # Steps

    def enabled(self) -> list[str]:
        """Return the names of the steps that make sense now, beside those that always do."""
        steps = ["turn"]
        if self.broker.loop.jobs:
            steps.append("apply")
        if self.broker.asked:
            steps.append("commit")
        for client, name in zip(self.clients, ("s", "p"), strict=True):
            if client.wire is None:
                steps.append(f"{name}_connect")
                continue
            if client.wire.is_readable:
                steps.append(f"{name}_send")
            if client.wire.out:
                steps.append(f"{name}_receive")
            if client.wire.is_gone and not client.wire.out:
                steps.append(f"{name}_lost")
        if self.subscriber.answers and self.subscriber.wire is not None:
            steps.append("s_answer")
        return steps

    def step(self, name: str) -> None:
        """Take a step by its name."""
        self.steps += 1
        who, _, what = name.partition("_")
        if not what:
            getattr(self, f"_{name}")()
            return
        client = self.subscriber if who == "s" else self.publisher
        getattr(self, f"_client_{what}")(client)

    def _turn(self) -> None:
        self.broker.turn()

    def _apply(self) -> None:
        self.broker.loop.work()

    def _commit(self) -> None:
        self.broker.commit()

    def _seal(self) -> None:
        self.broker.seal()

    def _tick(self) -> None:
        self.broker.pass_time(0.3)

    def _publish(self) -> None:
        self.publisher.publish()

    def _client_connect(self, client: Client) -> None:
        client.connect(self.broker)

    def _client_drop(self, client: Client) -> None:
        client.drop()

    def _client_leave(self, client: Client) -> None:
        """Send a DISCONNECT, and be gone when the broker has read it."""
        if client.wire is not None and client.is_open:
            client.send(Disconnect())
            client.wire.deliver()
            self.broker.turn()
            client.drop()

    def _client_lost(self, client: Client) -> None:
        client.lost()

    def _client_send(self, client: Client) -> None:
        assert client.wire is not None
        client.wire.deliver()
        self.broker.turn()

    def _client_receive(self, client: Client) -> None:
        client.receive()

    def _client_answer(self, client: Client) -> None:
        self.subscriber.answer(self.random.randrange(4) if self.random.random() < 0.3 else 0)

    # Crashes

    def _before_crash(self, reads: int) -> None:
        for client in self.clients:
            for _ in range(reads):
                client.receive()
            client.lost()

    def kill(self, applies: bool, writes: int, reads: int) -> None:
        """Kill the process; clients still read so many packets that were sent to them."""
        self._before_crash(reads)
        self._start(*self.broker.kill(applies, writes))

    def cut_power(self, place: int, reads: int) -> None:
        self._before_crash(reads)
        self._start(*self.broker.cut_power(place))

    def stop(self, reads: int) -> None:
        """Stop the broker in order and start it again."""
        left = self.broker.stop()
        self._before_crash(reads)
        self._start(*left)

    def _start(self, disk, tables) -> None:
        now = self.broker.loop.now
        self.broker = SteppedBroker(disk, tables, self.shards, self.broker.room)
        self.broker.loop.now = now + 1
        self.lives += 1

    def crash_somehow(self) -> None:
        random = self.random
        kind = random.randrange(5)
        reads = random.choice((0, 0, 1, 2, 5, 100))
        if kind < 2:
            self.kill(random.random() < 0.5, random.choice((0, 1, 2, 3, 5, 100)), reads)
        elif kind < 4:
            self.cut_power(random.choice((0, -1, -2, 1)), reads)
        else:
            self.stop(reads)

    # The end

    def close(self) -> None:
        self.broker.kill(False, 0)

    def round(self) -> bool:
        """Let everything that waits happen once, in a fixed order; whether anything did."""
        moved = False
        for name in self.order():
            if name in self.enabled():
                self.step(name)
                moved = moved or name != "turn"
        return moved

    def order(self) -> tuple[str, ...]:
        return (
            "s_connect", "p_connect", "s_send", "p_send", "turn", "apply", "turn", "commit", "turn",
            "s_receive", "p_receive", "s_lost", "p_lost", "s_answer",
        )  # fmt: skip

    def settle(self) -> None:
        """Let everything come to its end, then check it."""
        idle = 0
        while idle < 4 or not self.subscriber.is_subscribed:
            idle = 0 if self.round() else idle + 1
            if idle:
                self.broker.pass_time(0.3)
            self.steps += 1
            assert self.steps < 100_000, "it never ends"
        self.check()

    def check(self) -> None:
        """Check that all that was acknowledged has come, as often as its QoS says, and in order."""
        publisher, subscriber = self.publisher, self.subscriber
        assert publisher.acknowledged == set(range(publisher.count))
        first = [payload for payload in dict.fromkeys(subscriber.seen) if payload not in self.retained]
        owed = [b"%s %d" % (publisher.name.encode(), number) for number in range(publisher.count)]
        if publisher.qos == subscriber.qos == 2:
            twice = {payload: count for payload, count in Counter(subscriber.seen).items() if count > 1}
            assert not twice, f"came more than once at QoS 2: {twice}"
        missing = [payload for payload in [*self.retained, *owed] if payload not in subscriber.seen]
        assert not missing, f"never came: {missing}"
        if self.shards == 1:
            assert first == owed
