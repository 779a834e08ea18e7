"""Batches that are read back as columns, as the owner of a shard appends what others forward."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messages import to_columns

from everlog.base import PublisherName, RecordBuilder, StorageError, TopicTable
from everlog.cluster.forwarded_rows import columns_of, publishers_of, read_batch

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b/c", "ü".encode()]),
        st.sampled_from([0, 1, 2, 4, 5]),
        st.sampled_from([b"", b"\x01\x01", b"\x26\x00\x01k\x00\x02vv"]),
        st.binary(max_size=300),
    ),
    min_size=1,
    max_size=30,
)


def _batch(messages, name=None, start=0):
    table = TopicTable()
    builder = RecordBuilder(checked=False)
    builder.append(to_columns(messages, table), 0, len(messages), 7, table, publisher=name)
    return bytes(builder.take(start).to_bytes())


@given(MESSAGES, st.sampled_from([None, b"client", b"client\0user"]))
def test_messages_are_the_same_after_a_batch_was_read_and_appended_again(messages, name):
    sent = read_batch(_batch(messages, None if name is None else PublisherName(name)))
    again = RecordBuilder()
    again.append(columns_of(sent), 0, sent.count, 7, sent.table, publisher=publishers_of(sent))
    got = again.take(0)

    def told(records):
        rows = [(records.table.name(topic), flags, *rest) for _, _, topic, flags, *rest in records.rows()]
        who = [records.publisher(row) for row in range(records.count)]
        names = records.table.publishers
        return rows, [None if one == 0xFFFFFFFF else names.name(one) for one in who]

    assert told(got) == told(sent)
    assert told(sent)[1] == [name] * len(messages)


def test_a_batch_that_is_damaged_or_does_not_name_its_topics_is_refused():
    whole = _batch([(b"a", 2, b"", b"payload")])
    damaged = bytearray(whole)
    damaged[-20] ^= 1
    with pytest.raises(StorageError):
        read_batch(bytes(damaged))
    with pytest.raises(StorageError):
        read_batch(whole[:70])
