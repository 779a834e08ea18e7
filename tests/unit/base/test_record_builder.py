"""Taking a part of what was gathered: the part and the rest are what they would have been together."""

from random import Random

import pytest
from tests.messages import EXPIRY
from tests.shard_logs import columns_of

from everlog.base import RecordBuilder, Records, TopicTable, UsageError


def gathered(random: Random, runs: int) -> RecordBuilder:
    builder, table = RecordBuilder(), TopicTable()
    for n in range(runs):
        messages = [(b"t/%d" % random.randrange(9), bytes(random.randrange(60))) for _ in range(random.randrange(1, 4))]
        columns = columns_of(messages, table, random.choice((b"", EXPIRY)))
        builder.append(columns, 0, len(messages), 1000 + n * random.randrange(5000), table)
    return builder


def facts(parts: list[Records]) -> list[tuple[int, int, bytes, int, bytes, bytes]]:
    return [
        (offset, time, records.table.name(topic), flags, properties, payload)
        for records in parts
        for offset, time, topic, flags, properties, payload in records.rows()
    ]


@pytest.mark.parametrize("seed", range(40))
def test_parts_hold_together_what_one_batch_would(seed: int) -> None:
    whole = gathered(Random(seed), 20).take(70)
    builder, random = gathered(Random(seed), 20), Random(seed)
    parts = []
    offset, names = 70, 0
    while len(builder):
        rows = random.randrange(len(builder)) + 1
        size, left = builder.size, len(builder) - rows
        records = builder.take(offset, rows)
        assert (records.count, len(builder), records.verify()) == (rows, left, True)
        assert builder.size < size
        assert records.first_new_topic == names
        names += records.new_topics
        offset += rows
        parts.append(records)
    assert facts(parts) == facts([whole])
    assert (parts[0].first_time, parts[-1].last_time) == (whole.first_time, whole.last_time)
    assert [part.last_time for part in parts] == [part.rows()[-1][1] for part in parts]


def test_a_large_batch_is_the_block_its_payloads_were_gathered_in() -> None:
    builder, table = RecordBuilder(), TopicTable()
    offset, taken = 0, []
    for n in range(60):
        builder.append(columns_of([(b"t/%d" % n, bytes([n]) * 30_000)], table, EXPIRY), 0, 1, n, table)
        if n % 7 == 6:
            rows = len(builder) - n % 3
            taken.append(builder.take(offset, rows))
            offset += rows
    taken.append(builder.take(offset))
    assert [row[5] for records in taken for row in records.rows()] == [bytes([n]) * 30_000 for n in range(60)]
    assert [row[2] for records in taken for row in records.rows()] == list(range(60))
    for records in taken:
        assert records.verify(), "and the builder has let go of it"
        assert (len(records.data), records.layout.payloads) == (records.size, 64)


def test_what_stays_is_gathered_on() -> None:
    builder, table = RecordBuilder(), TopicTable()
    for n in range(200):
        builder.append(columns_of([(b"a", b"%d" % n)], table, EXPIRY), 0, 1, n, table)
        if n % 3 == 2:
            records = builder.take(n - 1 - n // 3, 2)
            assert [row[5] for row in records.rows()] == [b"%d" % k for k in range(n // 3 * 2, n // 3 * 2 + 2)]
    assert [row[5] for row in builder.take(0).rows()] == [b"%d" % k for k in range(132, 200)]


@pytest.mark.parametrize("rows", [0, 3])
def test_more_than_there_is_can_not_be_taken(rows: int) -> None:
    builder, table = RecordBuilder(), TopicTable()
    builder.append(columns_of([(b"a", b"1"), (b"b", b"2")], table), 0, 2, 1, table)
    with pytest.raises(UsageError):
        builder.take(0, rows)
    assert builder.take(0).count == 2


def test_a_batch_without_checks_has_the_same_records() -> None:
    taken = []
    for checked in (True, False):
        builder, table = RecordBuilder(checked), TopicTable()
        builder.append(columns_of([(b"a", b"1"), (b"b", b"2" * 500)], table, EXPIRY), 0, 2, 1, table)
        taken.append(builder.take(7))
    assert list(taken[0].rows()) == list(taken[1].rows())
    assert [records.verify() for records in taken] == [True, False]


def test_a_segment_names_a_topic_once_whichever_table_it_comes_from() -> None:
    builder, one, other = RecordBuilder(), TopicTable(), TopicTable()
    names = [b"t/%d" % number for number in range(300)]
    offset = 0
    for table, order in ((one, names), (other, [b"new", *reversed(names)]), (one, [*names, b"newer"])):
        messages = [(name, name) for name in order]
        builder.append(columns_of(messages, table), 0, len(messages), 1000, table)
        records = builder.take(offset)
        offset += records.count
        assert [records.table.name(row[2]) for row in records.rows()] == order
        assert records.verify()
    assert builder.table.all_names() == [*names, b"new", b"newer"]
    assert [builder.table.lookup(name) for name in builder.table.all_names()] == list(range(302))
