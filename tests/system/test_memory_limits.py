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
    Connack,
    Connect,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Reason,
    Suback,
    Subscribe,
    Subscription,
    Will,
    encode,
)

MIB = 1 << 20
LITTLE = 32 << 10  # what a session may have when others have taken the rest
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


def test_filters_beyond_the_limit_are_refused(tmp_path):
    each, most = 4000, 12 * MIB
    with served_with_probe(tmp_path, limits__sessions_bytes=most) as (served, probe), ExitStack() as stack:
        reasons: list[Reason] = []
        with served.growing_at_most(most + WORKING):
            for number in range(5):
                one = stack.enter_context(RawClient(served.port))
                one.connect(f"c{number}", session_expiry_interval=100)
                for first in range(0, each, 500):
                    names = (f"{number}/{place:05}/" + "x/" * 10 + "+" for place in range(first, first + 500))
                    one.send(Subscribe(1, tuple(Subscription(name, 1) for name in names)))
                    reasons += one.answer(Suback).reasons
            probe.goes_on()
        refused = reasons.count(Reason.QUOTA_EXCEEDED)
        assert refused == len(reasons) - reasons.count(Reason.GRANTED_QOS_1) > 0
        found = served.metrics()
        assert found["subscribes_refused_total"] == refused
        assert most * 7 // 8 - 10_000 < found["sessions_bytes"] <= most * 7 // 8 + 5 * LITTLE
        innocent = stack.enter_context(RawClient(served.port))  # the last eighth is for those who have little
        innocent.connect("innocent", session_expiry_interval=100)
        assert innocent.subscribe("innocent/+", qos=1) == (Reason.GRANTED_QOS_1,)


def test_what_sessions_took_is_given_back_when_they_end(tmp_path):
    with served_with_probe(tmp_path) as (served, _), ExitStack() as stack:
        before = served.metrics()["sessions_bytes"]
        for number in range(4):
            one = stack.enter_context(RawClient(served.port))
            one.connect(f"c{number}", expiry=100 * (number % 2), will=Will("will", bytes(1000)))
            one.subscribe("a", "b/+", f"$share/g/{number}", qos=1)
            if number > 1:
                one.unsubscribe("b/+")
            assert served.metrics()["sessions_bytes"] > before + 1000 * (number + 1)
        one.close()
        served.down_to("connections", 4)
        again = stack.enter_context(RawClient(served.port))
        again.connect("c3", False, expiry=100)
        for number in range(4):
            one = stack.enter_context(RawClient(served.port))
            one.connect(f"c{number}")  # a clean start ends what there was
            one.disconnect()
        served.down_to("sessions_bytes", before)
        assert served.metrics()["groups_bytes"] == 0


def test_wills_beyond_the_limit_are_refused(tmp_path):
    clients, most = 80, 4 * MIB
    pairs = tuple((f"{number:02x}", "vv") for number in range(4000))  # held one by one they take 20 times their bytes
    will = Will("will", bytes(60_000), properties=Properties(user_properties=pairs))
    hello = encode(Connect(5, "c0000", will=will), 5)
    with served_with_probe(tmp_path, limits__sessions_bytes=most) as (served, probe), ExitStack() as stack:
        watcher = stack.enter_context(RawClient(served.port))
        watcher.connect("watcher")
        watcher.subscribe("will", qos=1)
        holders = []
        with served.growing_at_most(most + WORKING):
            for number in range(clients):
                one = stack.enter_context(RawClient(served.port))
                one.send_bytes(hello.replace(b"c0000", b"c%04d" % number))
                if one.expect(Connack).reason is Reason.SUCCESS:
                    holders.append(one)
            probe.goes_on()
        assert len(holders) == most * 7 // 8 // len(hello)
        assert served.metrics()["sessions_refused_total"] == clients - len(holders)
        holders[0].close()
        message = watcher.message()
        assert (len(message.payload), message.properties.user_properties) == (60_000, pairs)


def test_user_properties_of_a_connect_are_not_held(tmp_path):
    clients = 60
    pairs = tuple((f"{number:02x}", "vv") for number in range(10_000))
    hello = encode(Connect(5, "c0000", properties=Properties(user_properties=pairs)), 5)
    with served_with_probe(tmp_path) as (served, probe), ExitStack() as stack, served.growing_at_most(WORKING):
        for number in range(clients):
            one = stack.enter_context(RawClient(served.port))
            one.send_bytes(hello.replace(b"c0000", b"c%04d" % number))
            assert one.expect(Connack).reason is Reason.SUCCESS
        probe.goes_on()


def test_retained_messages_count_what_they_take(tmp_path):
    most, levels = 6 * MIB, 30
    with served_with_probe(tmp_path, limits__retained_bytes=most) as (served, probe), ExitStack() as stack:
        publisher = stack.enter_context(RawClient(served.port))
        publisher.connect("publisher")
        topics = ["/".join(f"{number}x{level}" for level in range(levels)) for number in range(6000)]
        with served.growing_at_most(most + WORKING + 6 * MIB):  # the topics are known besides
            for first in range(0, len(topics), 200):
                publisher.send(*(Publish(topic, b"1", retain=True) for topic in topics[first : first + 200]), Pingreq())
                while publisher.receive().type is not PacketType.PINGRESP:
                    pass
            probe.goes_on()
        found = served.metrics()
        assert 1000 < found["retained_messages"] < 4000
        assert found["retained_refused_total"] > 2000
        assert most - 10_000 < found["retained_bytes"] < 2 * most  # a column that grows doubles
        reader = stack.enter_context(RawClient(served.port))
        reader.connect("reader")
        reader.subscribe("0x0/#", qos=1)
        assert reader.message().topic == topics[0]


def test_durable_groups_beyond_the_limits_are_refused(tmp_path):
    limits = {"limits__groups": 700, "limits__groups_per_client": 300}
    with served_with_probe(tmp_path, **limits) as (served, probe), ExitStack() as stack:
        granted = []
        for number in range(4):
            one = stack.enter_context(RawClient(served.port))
            one.connect(f"c{number}", session_expiry_interval=100)
            filters = [Subscription(f"$share/g{place}/{number}/{place}", 1) for place in range(400)]
            for first in range(0, 400, 100):
                one.send(Subscribe(1, tuple(filters[first : first + 100])))
                granted += [number] * one.answer(Suback).reasons.count(Reason.GRANTED_QOS_1)
        assert [granted.count(number) for number in range(4)] == [300, 300, 100, 0]
        found = served.until("groups_bytes", 700 * 3000)
        assert found["groups_bytes"] < 700 * 4000
        one.subscribe("$share/g1/0/1", qos=1)  # one more member of a group that there is
        clean = stack.enter_context(RawClient(served.port))
        clean.connect("clean")
        assert clean.subscribe("$share/other/t", qos=1) == (Reason.GRANTED_QOS_1,)
        probe.goes_on()
