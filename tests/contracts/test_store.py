"""What every message store does: one body over every implementation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tests.messages import EXPIRY, Message, to_columns
from tests.plain_store import PlainStore
from tests.stores import PLENTY, Row, append, drain, filters, numbered, open_store, rows_of, settle

from everlog.base import TopicTable, UsageError
from everlog.store import LogStore
from everlog.topics import matches, parse_filter


@dataclass
class Opened:
    """A store, and how its background work is brought to an end."""

    store: LogStore | PlainStore
    shards: int
    settle: Callable[[], None]

    @property
    def origin(self) -> tuple[int, ...]:
        return (0,) * self.shards

    def keep(self, messages: list[Message], each: int = 9, now_us: int = 1_000) -> None:
        """Append messages a few at a time, committed; time goes on by 10 us."""
        for start in range(0, len(messages), each):
            append(self.store, messages[start : start + each], now_us + 10 * (start // each))
            self.settle()

    def read(self, *texts: str, max_records: int = PLENTY, max_bytes: int = PLENTY) -> list[Row]:
        return drain(self.store.reader(filters(*texts)), self.origin, max_records, max_bytes)


def _log(shards: int, seal: bool) -> Opened:
    store = open_store(shards)
    return Opened(store, shards, lambda: _commit(store, seal))


def _commit(store: LogStore, seal: bool) -> None:
    store.commit()
    settle(store, seal)


def _plain(shards: int) -> Opened:
    store = PlainStore(shards)
    return Opened(store, shards, store.commit)


IMPLEMENTATIONS: dict[str, Callable[[], Opened]] = {
    "log of 1 shard": lambda: _log(1, True),
    "log of 4 shards": lambda: _log(4, True),
    "log of 4 shards, not sealed": lambda: _log(4, False),
    "lists, 1 shard": lambda: _plain(1),
    "lists, 4 shards": lambda: _plain(4),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    made = IMPLEMENTATIONS[request.param]()
    yield made
    made.store.close()


def by_topic(rows: list[Row]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for row in rows:
        found.setdefault(row[3], []).append(row[6])
    return found


def test_nothing_is_read_before_it_is_committed(opened: Opened) -> None:
    append(opened.store, numbered(3))
    assert opened.store.committed() == opened.origin
    result = opened.store.reader(None).read(opened.origin, 10, PLENTY)
    assert (result.batches, result.positions, result.caught_up) == ([], opened.origin, True)


def test_everything_kept_is_read_back_with_all_it_had(opened: Opened) -> None:
    messages = numbered(100)
    opened.keep(messages)
    rows = drain(opened.store.reader(None), opened.origin)
    assert sorted(row[3:] for row in rows) == sorted(messages)
    assert {row[2] for row in rows} == {1_000 + 10 * step for step in range(12)}


def test_a_topics_messages_have_one_shard_and_one_order(opened: Opened) -> None:
    opened.keep(numbered(100))
    rows = drain(opened.store.reader(None), opened.origin)
    for row in rows:
        assert row[0] == opened.store.shard_of(row[3])
    for payloads in by_topic(rows).values():
        assert payloads == sorted(payloads, key=lambda payload: int(payload.split()[1]))
    for shard in range(opened.shards):
        assert [row[1] for row in rows if row[0] == shard] == list(range(opened.store.committed()[shard]))


def test_append_says_which_commits_to_wait_for(opened: Opened) -> None:
    ends = append(opened.store, numbered(20))
    assert sorted(dict(ends)) == sorted({opened.store.shard_of(message[0]) for message in numbered(20)})
    assert sum(end for _, end in ends) == 20
    opened.settle()
    assert all(opened.store.committed()[shard] == end for shard, end in ends)
    assert append(opened.store, []) == []


def test_routes_say_what_is_kept_and_where(opened: Opened) -> None:
    table = TopicTable()
    messages: list[Message] = [(b"a", 0, b"", b"0"), (b"a", 2, b"", b"1"), (b"b", 2, b"", b"2"), (b"b", 4, b"", b"3")]
    columns = to_columns(messages, table)
    last = opened.shards - 1
    routes = bytearray((255, last, last, 255, 255, 255, 0, 255))
    ends = opened.store.append(columns, 0, 4, 5, table, routes)
    opened.settle()
    rows = drain(opened.store.reader(None), opened.origin)
    assert sorted((row[0], row[6]) for row in rows) == sorted([(last, b"1"), (0, b"3")])
    assert sum(end for _, end in ends) == 2


TOPICS = ("a", "a/b", "a/b/c", "a//c", "/a", "$SYS/a", "$SYS/a/b", "x/b/c", "ü/b")
FILTERS = ("a", "a/b", "a/#", "#", "+", "+/b/c", "a/+/c", "+/+", "/+", "$SYS/#", "$SYS/+", "+/a", "nope/#", "ü/+")


@pytest.mark.parametrize("text", FILTERS)
def test_a_filter_finds_what_matches_it_and_nothing_else(opened: Opened, text: str) -> None:
    messages: list[Message] = [(TOPICS[n % len(TOPICS)].encode(), 2, b"", b"%d" % n) for n in range(200)]
    opened.keep(messages)
    wanted = [message for message in messages if matches(parse_filter(text), message[0].decode())]
    assert sorted(row[3:] for row in opened.read(text)) == sorted(wanted)
    assert sorted(row[3:] for row in opened.read(text, max_records=3)) == sorted(wanted)


def test_overlapping_filters_find_a_record_once(opened: Opened) -> None:
    opened.keep([(topic.encode(), 2, EXPIRY, b"") for topic in TOPICS for _ in range(10)])
    rows = opened.read("a/#", "a/b", "+/b/c", "a/b/c", "a/#")
    assert len(rows) == len({row[:2] for row in rows}) == 50


def test_a_filter_that_matches_nothing_is_caught_up_at_once(opened: Opened) -> None:
    opened.keep(numbered(60))
    result = opened.store.reader(filters("nope/+")).read(opened.origin, 1, 1)
    assert (result.batches, result.positions, result.caught_up) == ([], opened.store.committed(), True)


@pytest.mark.parametrize("max_records", [1, 2, 7, 1000])
@pytest.mark.parametrize("texts", [("t/1/x",), ("t/+/x",), ("t/0/#", "t/2/#", "t/3/#")])
def test_small_steps_leave_nothing_out_and_repeat_nothing(
    opened: Opened, max_records: int, texts: tuple[str, ...]
) -> None:
    opened.keep(numbered(90))
    assert sorted(opened.read(*texts, max_records=max_records)) == sorted(opened.read(*texts))


def test_a_byte_limit_is_passed_by_one_batch_at_most_and_always_gets_on(opened: Opened) -> None:
    opened.keep(numbered(90))
    assert sorted(opened.read("t/+/x", max_bytes=1)) == sorted(opened.read("t/+/x"))
    result = opened.store.reader(filters("t/+/x")).read(opened.origin, PLENTY, 1)
    assert len(result.batches) == 1


def test_reading_begins_anywhere(opened: Opened) -> None:
    opened.keep(numbered(90))
    for texts in (("t/+/x",), ("t/1/x",)):
        reader = opened.store.reader(filters(*texts))
        rows = opened.read(*texts)
        for shard in range(opened.shards):
            for offset in range(opened.store.committed()[shard] + 1):
                positions = tuple(offset if number == shard else 0 for number in range(opened.shards))
                left = [row for row in rows if row[0] != shard or row[1] >= offset]
                assert sorted(drain(reader, positions)) == sorted(left)


def test_a_reader_goes_on_when_more_arrives(opened: Opened) -> None:
    reader = opened.store.reader(filters("t/#"))
    positions = opened.origin
    found: list[Row] = []
    for n in range(30):
        opened.keep([(b"t/%d" % (n % 4), 2, b"", b"%d" % n), (b"other/%d" % n, 2, b"", b"")])
        result = reader.read(positions, PLENTY, PLENTY)
        assert result.caught_up
        positions = result.positions
        found += rows_of(result)
        if n % 7 == 0:
            reader.release()
    assert sorted(row[6] for row in found) == sorted(b"%d" % n for n in range(30))


def test_one_shard_is_read_by_itself(opened: Opened) -> None:
    opened.keep(numbered(60))
    reader = opened.store.reader(filters("t/+/x"))
    rows = opened.read("t/+/x")
    for shard in range(opened.shards):
        result = reader.read_shard(shard, 1, 5, PLENTY)
        mine = [row for row in rows if row[0] == shard and row[1] >= 1][:5]
        assert rows_of(result) == mine
        assert len(result.positions) == 1


def test_a_time_finds_the_first_record_that_is_not_older(opened: Opened) -> None:
    opened.keep(numbered(60))
    rows = drain(opened.store.reader(None), opened.origin)
    for time_us in (0, 999, 1_000, 1_001, 1_030, 1_034, 1_060, 1_061, 2_000):
        positions = opened.store.positions_at(time_us)
        for shard, position in enumerate(positions):
            older = [row for row in rows if row[0] == shard and row[2] < time_us]
            assert position == len(older)


def test_a_commit_is_announced_with_its_shard(opened: Opened) -> None:
    called: list[int] = []
    seen: list[int] = []
    opened.store.on_commit(called.append)
    opened.store.on_commit(lambda shard: seen.append(opened.store.committed()[shard]))
    ends = dict(append(opened.store, numbered(20)))
    assert not called
    opened.settle()
    assert set(called) == set(ends)
    assert dict(zip(called, seen, strict=True)) == ends


def test_statistics_say_what_is_there_and_how_far_a_reader_is_behind(opened: Opened) -> None:
    opened.keep(numbered(60))
    numbers = opened.store.statistics()
    assert [one.shard for one in numbers] == list(range(opened.shards))
    assert sum(one.records for one in numbers) == 60
    assert tuple(one.committed for one in numbers) == opened.store.committed()
    for one in numbers:
        assert one.lag(0) == one.records
        assert one.lag(one.committed) == one.lag(one.committed + 5) == 0
        assert one.end == one.committed
        assert (one.damaged, one.distrusted) == (0, 0)


def test_without_limits_retention_removes_nothing(opened: Opened) -> None:
    opened.keep(numbered(60))
    opened.store.run_retention(1 << 60)
    assert len(drain(opened.store.reader(None), opened.origin)) == 60


def test_positions_of_another_number_of_shards_are_refused(opened: Opened) -> None:
    with pytest.raises(UsageError):
        opened.store.reader(None).read((*opened.origin, 0), 1, 1)


def test_a_store_is_closed_more_than_once_without_harm(opened: Opened) -> None:
    opened.store.close()
    opened.store.close()
