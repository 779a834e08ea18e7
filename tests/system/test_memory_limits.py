"""Memory that peers can make a broker process take: within the limits of docs/reference/limits.md, and given back.

Each test does with few what an attacker does with many, and compares the growth with the limit and with what the same
takes without one.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.raw_client import RawClient
from tests.system.serving import Probe, Served

from everlog.mqtt import (
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Reason,
    Suback,
    Subscribe,
    Subscription,
)

MIB = 1 << 20
WORKING = 24 * MIB  # docs/reference/limits.md: what is under way in one moment


@contextmanager
def served_with_probe(tmp_path: Path, *arguments: str, **settings: object) -> Iterator[tuple[Served, Probe]]:
    """A broker with a client that goes on with its round trips."""
    with Served(tmp_path / "data", *arguments, **settings) as served, Probe(served.port) as probe:
        probe.goes_on()
        served.metrics()
        yield served, probe


class Group:
    """A publisher, and a member of a shared group that acknowledges nothing."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._port, self._stack = port, stack
        self.publisher = stack.enter_context(RawClient(port))
        self.publisher.connect("publisher")
        self.join()

    def join(self) -> None:
        self.member = self._stack.enter_context(RawClient(self._port))
        self.member.connect("member")
        self.member.subscribe("$share/g/t", qos=1)

    def send(self, count: int, size: int) -> int:
        """Publish so much to the member; how many of these messages it got before the broker closed it."""
        for number in range(count):
            self.publisher.publish("t", bytes(size), 1)
            packet = self.member.receive()
            if packet.type is not PacketType.PUBLISH:
                assert packet.reason is Reason.QUOTA_EXCEEDED
                return number
        return count


def test_a_member_that_acknowledges_nothing_is_closed_when_that_takes_too_much(tmp_path):
    with served_with_probe(tmp_path, limits__copies_bytes="8MiB") as (served, probe), ExitStack() as stack:
        group = Group(served.port, stack)
        with served.growing_at_most(8 * MIB + WORKING):
            got = group.send(1000, 64 << 10)
            assert 100 < got < 130
            probe.goes_on()
        found = served.until("over_copies_total", 1)
        assert found["copies_bytes"] == 0
        group.join()
        assert group.send(10, 1000) == 10


def test_what_a_member_did_not_acknowledge_goes_with_it(tmp_path):
    with served_with_probe(tmp_path) as (served, probe), ExitStack() as stack:
        group = Group(served.port, stack)
        with served.growing_at_most(32 * MIB + WORKING):
            for _ in range(5):
                assert group.send(512, 32 << 10) == 512
                assert served.metrics()["copies_bytes"] > 16 * MIB
                group.member.close()
                served.down_to("copies_bytes", 0)
                group.join()
            probe.goes_on()


def fill_audiences(served: Served, stack: ExitStack, everything: int, owners: int, topics: int) -> RawClient:
    """Let each of many topics have subscribers that no other has, most of whom have every topic; a publisher to all."""
    watchers = [stack.enter_context(RawClient(served.port, 4)) for _ in range(everything)]
    for number, one in enumerate(watchers):
        one.connect(f"all{number}")
        one.subscribe("#")
    for number in range(owners):
        one = stack.enter_context(RawClient(served.port, 4))
        one.connect(f"owner{number}")
        mine = [Subscription(f"t/{topic:014b}") for topic in range(topics) if topic >> number & 1]
        one.send(Subscribe(1, tuple(mine)))
        one.answer(Suback)
    publisher = stack.enter_context(RawClient(served.port, 4))
    publisher.connect("publisher")
    return publisher


def test_many_topics_with_different_subscribers(tmp_path):
    everything, topics = 120, 1500
    with served_with_probe(tmp_path) as (served, probe), ExitStack() as stack:
        publisher = fill_audiences(served, stack, everything, 11, topics)
        with served.growing_at_most(WORKING):  # each audience with objects of its own took 100 MiB
            for first in range(0, topics, 50):
                publisher.send(*(Publish(f"t/{topic:014b}", b"") for topic in range(first, first + 50)), Pingreq())
                publisher.expect(Pingresp)
            probe.goes_on()
        found = served.metrics()
        assert topics * everything * 8 < found["audiences_bytes"] < topics * (everything * 8 + 500) + MIB
        assert found["audience_resets_total"] == 0


def test_audiences_that_take_too_much_are_forgotten_and_everybody_gets_everything(tmp_path):
    topics = 512
    with served_with_probe(tmp_path, limits__audiences_bytes="200KiB") as (served, probe), ExitStack() as stack:
        publisher = fill_audiences(served, stack, 20, 9, topics)
        reader = stack.enter_context(RawClient(served.port))
        reader.connect("reader")
        reader.subscribe("t/#", qos=1)
        sent = [f"t/{topic:014b}" for topic in range(topics)]
        publisher.send(*(Publish(topic, b"") for topic in sent))
        assert [reader.message().topic for _ in sent] == sent
        probe.goes_on()
        found = served.metrics()
        assert found["audiences_bytes"] < 300 << 10
        assert found["audience_resets_total"] > 0


def test_messages_with_thousands_of_subscription_identifiers(tmp_path):
    levels, clients, messages = 10, 3, 15000
    filters = ["/".join("+a"[number >> level & 1] for level in range(levels)) for number in range(1 << levels)]
    with served_with_probe(tmp_path) as (served, probe), ExitStack() as stack:
        for number in range(clients):
            one = stack.enter_context(RawClient(served.port))
            one.connect(f"s{number}")
            for identifier, text in enumerate(filters, 1):
                properties = Properties(subscription_identifiers=(identifier,))
                one.send(Subscribe(identifier, (Subscription(text, number % 2),), properties))
            for _ in filters:
                one.answer(Suback)
        publisher = stack.enter_context(RawClient(served.port))
        publisher.connect("publisher")
        topic = "/".join("a" * levels)
        burst = [Publish(topic, b"", properties=Properties(topic_alias=1))]
        burst += [Publish("", b"", properties=Properties(topic_alias=1))] * messages
        with served.growing_at_most(WORKING + clients * 2 * MIB):  # all at once they are 130 MiB
            publisher.send(*burst, Pingreq())
            publisher.expect(Pingresp)
            probe.goes_on()
        reader = stack.enter_context(RawClient(served.port))
        reader.connect("s0")  # a client that reads gets each whole
        reader.send(
            *(Subscribe(1, (Subscription(text),), Properties(subscription_identifiers=(7,))) for text in filters)
        )
        for _ in filters:
            reader.answer(Suback)
        publisher.send(*burst[:1000])
        assert all(reader.message().topic == topic for _ in range(1000))
