"""Long SUBSCRIBE packets, whose plain filters are granted a run at a time: nobody can tell but by the time it takes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stages import Stage

from everlog.base import MessageColumns, TopicTable
from everlog.broker.limits import Limits
from everlog.mqtt import Decoder, LongList, Reason, Subscribe, Subscription, encode
from everlog.sessions import STORED_BYTES

KEEP = {"clean_start": False, "expiry": 100}
VALID = [
    "a",
    "a/b",
    "b/+",
    "b/#",
    "+/b",
    "+",
    "#",
    "$share/g/a",
    "$SYS/x",
    "ü/b",
    "a/b/c",
    "kept/1",
    "kept/+",
    "/",
    "a//b",
]
REFUSED = ["a+", "#/a", "$share/g", "x" * 1025, "/" * 200, "$replay/oldest/a", "$replay/a"]
TEXTS = st.sampled_from([*VALID, *REFUSED])
OPTIONS = st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 2))


def filler(count=40):
    return [Subscription(f"filler/{number:04d}", 1) for number in range(count)]


def grant(stage, client_id, wanted, step, **connect):
    """Subscribe in packets of `step` filters; return the reasons and what the session and others know then."""
    client = stage.connected(client_id, **connect)
    reasons = []
    for start in range(0, len(wanted), step):
        reasons += client.subscribe(*wanted[start : start + step], identifier=7)
    session = stage.inside.sessions[client_id]
    known = {text: stage.call(lambda text=text: session.subscriptions[text]) for text in session.subscriptions}
    held = stage.call(lambda: session.held_bytes)
    return client, reasons, (known, held, session.no_local, stage.inside.live_subscriptions)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(TEXTS, OPTIONS), max_size=30), st.sampled_from([{}, KEEP]), st.booleans())
def test_a_long_packet_is_granted_what_its_filters_are_one_by_one(some, connect, has_retained):
    wanted = [*filler(), *(Subscription(text, qos, local, False, when) for text, (qos, local, when) in some)]
    wanted = [one for one in wanted if not (one.no_local and one.filter.startswith("$share/"))]
    outcomes = []
    for step in (1, len(wanted)):
        stage = Stage()
        try:
            publisher = stage.connected("p")
            for topic in ("kept/1", "kept/2") if has_retained else ():
                publisher.publish(topic, topic, 1, retain=True)
            client, reasons, after = grant(stage, "c", wanted, step, **connect)
            kept = stage.call(stage.inside.kept_filters)
            got = []
            for number, topic in enumerate(("a", "a/b", "b/x", "filler/0007", "kept/1")):
                publisher.publish(topic, f"{number}", 1)
            publisher.publish("filler/0001", "end", 1)
            while not got or got[-1] != "end":
                got += client.payloads(1)
            client.disconnect()
            stage.offline("c")
            outcomes.append((reasons, after, kept, sorted({*got}), stage.inside.live_subscriptions))
        finally:
            stage.close()
    assert outcomes[0] == outcomes[1]


def test_so_many_filters_arrive_as_bytes():
    """Else the other tests here show nothing."""
    decoder = Decoder(MessageColumns(16), TopicTable(), version=5)
    (packet,) = decoder.feed(encode(Subscribe(7, tuple(filler())), 5))
    assert isinstance(packet.subscriptions, LongList)


@pytest.fixture
def limited():
    made = Stage(limits=Limits(subscriptions_per_client=25, sessions_bytes=STORED_BYTES + 12_000))
    yield made
    made.close()


def test_who_has_all_the_filters_that_it_may_is_refused_the_rest(limited):
    _, reasons, after = grant(limited, "c", filler(), 40)
    assert reasons == [Reason.GRANTED_QOS_1] * 25 + [Reason.QUOTA_EXCEEDED] * 15
    assert len(after[0]) == 25


def test_filters_that_take_more_memory_than_all_may_are_refused(limited):
    _, reasons, _ = grant(limited, "c", filler(20), 20, **KEEP)
    fits = reasons.index(Reason.QUOTA_EXCEEDED)
    assert 10 < fits < 20
    assert reasons == [Reason.GRANTED_QOS_1] * fits + [Reason.QUOTA_EXCEEDED] * (20 - fits)
