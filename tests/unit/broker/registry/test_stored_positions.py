"""No stored position lies above the committed end: a crash cuts what lies there, and new messages get those offsets."""

from typing import Any

import pytest
from tests.memory_log import MemoryLog
from tests.restarts import Client, Disk, Running, check_positions

from everlog.mqtt import Publish
from everlog.sessions import Changes, Cursor, SubscriptionRow, settle, unpack_offsets
from everlog.sessions.row_format import pack_offsets
from everlog.sessions.tables import SessionRow, StoredSession


def slow_disk(shards: int) -> Disk:
    """A disk whose log commits when the test says so."""
    disk = Disk(shards)
    disk.log = MemoryLog(shards, manual=True)
    return disk


async def on_their_way(running: Running, count: int = 5) -> Client:
    """Messages are appended and not committed."""
    publisher = await running.client("p", expiry=0)
    publisher.send(*(Publish(f"t/{'x' * k}", b"early", qos=1, packet_id=k) for k in range(1, count + 1)))
    await publisher.nothing_more()
    assert any(shard.end > shard.committed for shard in running.disk.log.shards)
    return publisher


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("text", ["t/#", "$share/g/t/#"])
async def test_a_subscription_made_while_messages_are_on_their_way_loses_nothing_in_a_crash(
    shards: int, text: str
) -> None:
    async with Running(slow_disk(shards), keep=[("#", 0)]) as first:
        await on_their_way(first)
        client = await first.client("c")
        await client.subscribe(text)
        left = first.disk.after_crash()
        async with Running(left) as second:
            back = await second.client("c")
            assert back.connack.session_present
            publisher = await second.client("p", expiry=0)
            for k in range(1, 6):
                await publisher.publish(f"t/{'x' * k}", b"late")
            assert [message.payload for message in await back.publishes(5)] == [b"late"] * 5
        for shard in first.disk.log.shards:
            shard.manual = False
        first.disk.log.commit_now()


async def test_a_begin_above_the_end_that_was_stored_before_is_cut_at_start() -> None:
    row = SessionRow("c", away_us=7)
    since = SubscriptionRow("t/#", 1, 0, pack_offsets((150, 3)))
    found = settle(StoredSession(row, (since,), Cursor(pack_offsets((90, 3)))), (90, 3), 1, (100, 3))
    assert unpack_offsets(found.subscriptions[0].since) == (100, 3)
    assert settle(found, (90, 3), 1, (100, 3)) is found


def test_the_check_of_stored_positions_sees_each_kind() -> None:
    above: Any = pack_offsets((11,))
    check_positions(Changes(routed=(10,), cursors=(("c", Cursor(pack_offsets((10,)))),)), (10,))
    for changes in (
        Changes(routed=(11,)),
        Changes(cursors=(("c", Cursor(above)),)),
        Changes(subscribed=(("c", SubscriptionRow("t", 1, 0, above)),)),
    ):
        with pytest.raises(AssertionError, match="above the committed end"):
            check_positions(changes, (10,))
