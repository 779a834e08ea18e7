"""Kept messages say who has published them: client id and user, of wills too, unless that is switched off."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.memory_log import MemoryLog
from tests.replays import replay
from tests.stages import Stage

from everlog.base import NO_PUBLISHER, split_publisher
from everlog.broker import Security
from everlog.broker.auth import set_password
from everlog.mqtt import Publish, Will

Said = tuple[bytes, tuple[str, str | None] | None]  # payload, client id and user


@pytest.fixture(params=[1, 3])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """A broker that keeps everything and knows one user."""
    path = tmp_path / "passwords"
    set_password(path, "ann", b"right")
    security = Security(allow_anonymous=True, password_file=str(path))
    stage = Stage(MemoryLog(request.param), keep=[("#", 0)], security=security)
    yield stage
    stage.close()


def said(stage: Stage) -> list[Said]:
    """Return what the log says of all messages, in the order of their payloads."""
    found: list[Said] = []
    for shard in stage.running.log.shards:
        for records in shard.batches:
            for k in range(len(records)):
                who = records.publisher(k)
                name = None if who == NO_PUBLISHER else split_publisher(records.table.publishers.name(who))
                found.append((records.row(k)[5], name))
                assert records.packet_id(k) == 0
    return sorted(found)


def test_messages_are_kept_with_client_and_user(stage: Stage) -> None:
    plain = stage.connected("plain")
    ann = stage.connected("ann's", 4, user_name="ann", password=b"right")
    for number, qos in enumerate((0, 1, 2)):
        plain.publish("a", b"%d plain" % number, qos)
        ann.publish("b" * (1 + number), b"%d ann" % number, qos)
    again = stage.connected("plain")
    again.publish("a", b"3 plain", 1)
    stage.call(lambda: stage.inside.publish(Publish("c", b"4 nobody")))
    stage.until(lambda: stage.inside.messages_kept == 8)
    plain, ann = ("plain", None), ("ann's", "ann")
    assert said(stage) == [
        (b"0 ann", ann),
        (b"0 plain", plain),
        (b"1 ann", ann),
        (b"1 plain", plain),
        (b"2 ann", ann),
        (b"2 plain", plain),
        (b"3 plain", plain),
        (b"4 nobody", None),
    ]


def test_an_assigned_client_id_is_the_one_that_is_kept(stage: Stage) -> None:
    client = stage.client()
    given = client.connect("").properties.assigned_client_identifier
    client.publish("a", b"x", 1)
    assert said(stage) == [(b"x", (given, None))]


def test_a_will_is_kept_as_its_clients(stage: Stage) -> None:
    client = stage.connected("c", will=Will("will", b"gone", 1), user_name="ann", password=b"right")
    client.reset()
    stage.until(lambda: stage.inside.messages_kept == 1)
    assert said(stage) == [(b"gone", ("c", "ann"))]


def test_nobody_is_named_if_that_is_switched_off() -> None:
    stage = Stage(MemoryLog(), keep=[("#", 0)], publishers=False)
    client = stage.connected("c", will=Will("will", b"gone", 1))
    client.publish("a", b"x", 2)
    client.reset()
    stage.until(lambda: stage.inside.messages_kept == 2)
    (shard,) = stage.running.log.shards
    assert [records.layout.kind for records in shard.batches] == [0, 0]
    stage.close()


def pairs_of(message: Publish) -> tuple[tuple[str, str], ...]:
    told = ("everlog-publisher", "everlog-user")
    return tuple(pair for pair in message.properties.user_properties if pair[0] in told)


@pytest.mark.parametrize("filters", ["a/+", "$share/g/a/+"])
def test_who_asks_is_told_the_publisher_live_and_from_the_log(stage: Stage, filters: str) -> None:
    plain = stage.connected("plain")
    ann = stage.connected("ann's", 4, user_name="ann", password=b"right")
    asks, other = stage.connected("asks"), stage.connected("other")
    assert replay(asks, None, filters, publisher=True).properties.reason_string is None
    other.subscribe("a/+")
    stage.call(lambda: stage.inside.publish(Publish("a/0", b"nobody")))
    plain.publish("a/1", b"plain", 1)
    ann.publish("a/2", b"ann", 1)
    told = {b"nobody": (), b"plain": (("everlog-publisher", "plain"),)}
    told[b"ann"] = (("everlog-publisher", "ann's"), ("everlog-user", "ann"))
    assert {one.payload: pairs_of(one) for one in (asks.message() for _ in range(3))} == told
    assert {pairs_of(other.message()) for _ in range(3)} == {()}
    later = stage.connected("later")
    replay(later, "earliest", filters.replace("$share/g", "$share/later"), publisher=True)
    assert {one.payload: pairs_of(one) for one in (later.message() for _ in range(3))} == told


def test_a_message_that_is_sent_again_tells_its_publisher_again(stage: Stage) -> None:
    durable = {"clean_start": False, "session_expiry_interval": 1000}
    asks = stage.connected("asks", **durable)
    replay(asks, None, "a", publisher=True)
    stage.connected("one").publish("a", b"x", 1)
    assert (first := asks.receive()).payload == b"x"
    asks.reset()
    again = stage.connected("asks", **durable).message()
    assert (again.dup, again.payload, pairs_of(again)) == (True, b"x", pairs_of(first))
    assert pairs_of(again) == (("everlog-publisher", "one"),)


def test_publishers_are_told_to_those_who_may_replay(tmp_path: Path) -> None:
    path = tmp_path / "acl"
    path.write_text("everyone readwrite #\neveryone deny replay closed/#\n")
    stage = Stage(MemoryLog(), keep=[("#", 0)], security=Security(acl_file=str(path)))
    asks, one = stage.connected("asks"), stage.connected("one")
    assert replay(asks, None, "open/#", publisher=True).properties.reason_string is None
    why = replay(asks, None, "closed/#", publisher=True).properties.reason_string
    assert why == "who has published is told to those who may replay the filter"
    one.publish("closed/a", b"1", 1)
    one.publish("open/a", b"2", 1)
    assert [pairs_of(asks.message()) for _ in range(2)] == [(), (("everlog-publisher", "one"),)]
    stage.close()


def test_nobody_is_told_if_that_is_switched_off() -> None:
    stage = Stage(MemoryLog(), keep=[("#", 0)], publishers=False)
    asks = stage.connected("asks")
    why = replay(asks, None, "a", publisher=True).properties.reason_string
    assert why == "who has published is not kept (keep.publishers)"
    stage.connected("one").publish("a", b"x", 1)
    assert pairs_of(asks.message()) == ()
    stage.close()
