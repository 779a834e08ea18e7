"""A batch that names all topics so far has the same rows as before, and can begin a segment."""

from random import Random

import pytest
from tests.messages import EXPIRY
from tests.shard_logs import columns_of

from everlog.base import RecordBuilder, Records, TopicTable, with_all_names


@pytest.mark.parametrize("seed", range(40))
def test_the_rows_stay_and_all_names_come_with_them(seed: int) -> None:
    random, builder, table = Random(seed), RecordBuilder(), TopicTable()
    for base in range(0, 50, 10):
        messages = [(b"t/%d" % random.randrange(base + 9), bytes(random.randrange(40))) for _ in range(10)]
        columns = columns_of(messages, table, random.choice((b"", EXPIRY)))
        builder.append(columns, 0, 10, 1000 + base, table)
        records = builder.take(base)
        leading = with_all_names(records)
        assert leading.verify()
        assert (leading.rows(), leading.base_offset, leading.end_offset) == (records.rows(), base, base + 10)
        assert (leading.first_time, leading.last_time) == (records.first_time, records.last_time)
        assert (leading.first_new_topic, leading.new_names()) == (0, builder.table.all_names())
        assert Records(bytes(leading.to_bytes()), 0, table).size == leading.size >= records.size


def test_the_first_batch_of_a_segment_stays_as_it_is() -> None:
    builder, table = RecordBuilder(), TopicTable()
    builder.append(columns_of([(b"a", b"1"), (b"b", b"2")], table), 0, 2, 5, table)
    records = builder.take(7)
    assert with_all_names(records).to_bytes() == records.to_bytes()


def test_a_table_that_is_renewed_has_the_same_ids_and_is_another_one() -> None:
    builder, table = RecordBuilder(), TopicTable()
    builder.append(columns_of([(b"a", b"1"), (b"b", b"2")], table), 0, 2, 5, table)
    first = builder.take(0)
    before = builder.table
    builder.renew_table()
    builder.append(columns_of([(b"b", b"3"), (b"c", b"4")], table), 0, 2, 6, table)
    second = builder.take(2)
    assert first.table is before
    assert second.table is builder.table is not before
    assert [second.table.name(row[2]) for row in second.rows()] == [b"b", b"c"]
    assert (before.all_names(), second.new_names()) == ([b"a", b"b"], [b"c"])
