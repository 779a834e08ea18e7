"""What a feed tells when the series of its state is cut off."""

from contextlib import aclosing

from tests.unit.client.test_requester import answering, found

from everlog.client import Client
from everlog.client.watch import Item
from everlog.streams import CaughtUp, ErrorCode, Failure, FeedReset, Level, MessageSet, Reply

ALL = Reply(2, 0, Level.FSYNC, CaughtUp(-1, 0))
LOST = Failure(ErrorCode.UNAVAILABLE, "the shard was closed")
RESET = Failure(ErrorCode.RESET, "too old")


async def until_caught_up(client: Client) -> list[Item]:
    """Return what a new feed tells up to "caught up"."""
    told: list[Item] = []
    async with aclosing(client.stream("s").watch().__aiter__()) as items:  # type: ignore[type-var]
        async for item in items:
            told.append(item)
            if isinstance(item, CaughtUp):
                break
    return told


async def test_after_an_interrupted_state_caught_up_is_told_though_nothing_is_left() -> None:
    async with answering([found(1, b"gone since", is_last=False), LOST], ALL) as (client, _):
        first, reset, end = await until_caught_up(client)
        assert isinstance(first, MessageSet)
        assert reset == FeedReset("interrupted")
        assert end == CaughtUp(-1, 0)


async def test_after_a_reset_of_a_feed_caught_up_is_told_though_nothing_is_left() -> None:
    async with answering(RESET, ALL) as (client, _):
        assert await until_caught_up(client) == [FeedReset("too old"), CaughtUp(-1, 0)]
