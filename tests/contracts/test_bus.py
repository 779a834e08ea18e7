"""What every bus does, whatever carries it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.buses import PATIENCE_S, Carrier, Heard, carriers
from tests.nats_servers import PROGRAM

from everlog.base import Unavailable, UsageError
from everlog.bus import Bus, make_bus

SOCKETS = ["nats", "mqtt"]


@pytest_asyncio.fixture(params=["local", *SOCKETS])
async def carrier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Carrier]:
    if request.param == "nats" and PROGRAM is None:
        pytest.skip("needs nats-server: run tools/install-servers")
    found = carriers(tmp_path)[request.param]()
    await found.start()
    yield found
    await found.stop()


over_sockets = pytest.mark.parametrize("carrier", SOCKETS, indirect=True)


@pytest_asyncio.fixture
async def pair(carrier: Carrier) -> AsyncIterator[tuple[Bus, Bus]]:
    one, other = carrier.bus(), carrier.bus()
    await one.open()
    await other.open()
    yield one, other
    await one.close()
    await other.close()


async def test_a_subscriber_gets_what_is_published_after_it_subscribed(pair: tuple[Bus, Bus]) -> None:
    one, other = pair
    heard = Heard()
    await other.subscribe("a/b", heard)
    assert one.publish("a/b", b"x")
    assert one.publish("a/c", b"not this")
    assert one.publish("a/b", b"")
    await heard.until(2)
    assert [(it.subject, it.payload, it.reply) for it in heard.deliveries] == [("a/b", b"x", ""), ("a/b", b"", "")]


async def test_an_open_pattern_matches_every_deeper_subject_and_not_its_own_stem(pair: tuple[Bus, Bus]) -> None:
    one, other = pair
    heard = Heard()
    await other.subscribe("a/b/#", heard)
    for subject in ("a/b/c", "a/b", "a/bc/d", "a/b/c/d/e", "a/b/end"):
        one.publish(subject, b"")
    await heard.until(3)
    # MQTT's own rule has the stem match too; our patterns leave it out everywhere
    assert [it.subject for it in heard.deliveries] == ["a/b/c", "a/b/c/d/e", "a/b/end"]


async def test_names_may_have_every_character(pair: tuple[Bus, Bus]) -> None:
    one, other = pair
    heard = Heard()
    names = ["s/with space", "s/dot.ted", "s/*>", "s/100%", "s/%41", "s/ünï", "s/\ttab", "s/[x]{y}"]
    await other.subscribe("s/#", heard)
    exact = Heard()
    await other.subscribe("s/dot.ted", exact)
    for name in names:
        one.publish(name, name.encode())
    await heard.until(len(names))
    assert [it.subject for it in heard.deliveries] == names
    await exact.until(1)
    assert exact.payloads == [b"s/dot.ted"]


async def test_a_reply_reaches_the_inbox_of_who_asked(pair: tuple[Bus, Bus]) -> None:
    one, other = pair
    answers = Heard()
    await one.subscribe(f"{one.inbox}/#", answers)
    await other.subscribe("ask", lambda batch: [other.publish(it.reply, b"re " + it.payload) for it in batch] and None)
    for i in range(3):
        one.publish("ask", b"%d" % i, f"{one.inbox}/r")
    await answers.until(3)
    assert answers.payloads == [b"re 0", b"re 1", b"re 2"]


async def test_a_reply_subject_outside_of_all_inboxes_does_not_arrive(pair: tuple[Bus, Bus]) -> None:
    one, other = pair
    heard = Heard()
    await other.subscribe("ask", heard)
    one.publish("ask", b"evil", "somebody/elses/topic")
    one.publish("ask", b"good", f"{one.inbox}/r")
    await heard.until(2)
    assert [it.reply for it in heard.deliveries] == ["", f"{one.inbox}/r"]


async def test_many_messages_keep_their_order_and_arrive_in_batches(pair: tuple[Bus, Bus]) -> None:
    one, other = pair
    heard = Heard()
    await other.subscribe("a/#", heard)
    for i in range(1000):
        one.publish(f"a/{i % 7}", b"%d" % i)
    await heard.until(1000)
    assert heard.payloads == [b"%d" % i for i in range(1000)]
    assert heard.batches < 1000


async def test_the_largest_message_passes_and_a_larger_one_is_refused(pair: tuple[Bus, Bus]) -> None:
    one, other = pair
    heard = Heard()
    await other.subscribe("big", heard)
    largest = bytes(range(256)) * (one.max_payload // 256 + 1)
    one.publish("big", largest[: one.max_payload])
    await heard.until(1)
    assert heard.payloads[0] == largest[: one.max_payload]
    with pytest.raises(UsageError, match="too large"):
        one.publish("big", largest[: one.max_payload + 1])


async def test_two_handlers_of_one_pattern_both_hear_and_end_by_themselves(pair: tuple[Bus, Bus]) -> None:
    one, other = pair
    first, second = Heard(), Heard()
    subscription = await other.subscribe("a", first)
    await other.subscribe("a", second)
    one.publish("a", b"1")
    await first.until(1)
    await second.until(1)
    subscription.cancel()
    subscription.cancel()
    one.publish("a", b"2")
    await second.until(2)
    assert first.payloads == [b"1"]


async def test_a_closed_bus_takes_nothing(carrier: Carrier) -> None:
    bus = carrier.bus()
    assert not bus.publish("a", b"x")
    await bus.open()
    await bus.close()
    assert not bus.publish("a", b"x")


async def test_a_bad_subject_is_refused(pair: tuple[Bus, Bus]) -> None:
    for pattern in ("", "a//b", "/a", "a/+/b", "a/#/b", "#"):
        with pytest.raises(UsageError):
            await pair[0].subscribe(pattern, Heard())


# What buses over a socket do besides


@over_sockets
async def test_nobody_at_the_address_is_an_error_with_a_hint(carrier: Carrier) -> None:
    await carrier.stop()
    with pytest.raises(Unavailable, match="running there"):
        await carrier.bus().open()
    await carrier.start()


@over_sockets
async def test_the_next_address_is_tried_when_one_does_not_answer(carrier: Carrier) -> None:
    scheme = carrier.url.partition(":")[0]
    bus = make_bus(f"{scheme}://127.0.0.1:1,{carrier.url}")
    await bus.open()
    heard = Heard()
    await bus.subscribe("a", heard)
    bus.publish("a", b"x")
    await heard.until(1)
    await bus.close()


@over_sockets
async def test_a_restarted_bus_is_connected_to_again_with_every_subscription(carrier: Carrier) -> None:
    bus = carrier.bus()
    await bus.open()
    heard, seen = Heard(), asyncio.Queue[bool]()
    bus.watch(seen.put_nowait)
    await bus.subscribe("a/#", heard)
    await carrier.stop()
    async with asyncio.timeout(PATIENCE_S):
        assert await seen.get() is False
        assert not bus.publish("a/b", b"nobody takes it")
        late = Heard()
        await bus.subscribe("late", late)
        await carrier.start()
        assert await seen.get() is True
    bus.publish("a/b", b"again")
    bus.publish("late", b"too")
    await heard.until(1)
    await late.until(1)
    assert (heard.payloads, late.payloads) == ([b"again"], [b"too"])
    await bus.close()
