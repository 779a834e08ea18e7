"""Batches that are read back as columns, as the owner of a shard appends what others forward."""

import struct

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messages import to_columns

from everlog.base import PublisherColumn, PublisherName, RecordBuilder, StorageError, TopicTable
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


def test_payloads_without_properties_stay_where_they_are():
    sent = read_batch(b"head" + _batch([(b"a", 2, b"", b"one"), (b"b", 0, b"", b"two")]), 4)
    columns = columns_of(sent)
    assert columns.source is sent.data
    again = RecordBuilder()
    again.append(columns, 1, 2, 7, sent.table)
    assert [row[5] for row in again.take(0).rows()] == [b"two"]


def test_a_batch_of_one_publisher_names_it_once():
    named = PublisherName(b"client")
    messages = [(b"a", 2, b"", b"1"), (b"a", 2, b"", b"2")]
    assert isinstance(publishers_of(read_batch(_batch(messages, named))), PublisherName)
    table = TopicTable()
    builder = RecordBuilder(checked=False)
    for who in (named, None):
        builder.append(to_columns(messages, table), 0, 2, 7, table, publisher=who)
    mixed = publishers_of(read_batch(bytes(builder.take(0).to_bytes())))
    assert isinstance(mixed, PublisherColumn)


def test_names_that_do_not_lie_inside_of_a_batch_are_refused():
    whole = bytearray(_batch([(b"a", 2, b"", b"payload"), (b"b", 2, b"", b"payload")]))
    sent = read_batch(bytes(whole))
    place = sent.layout.name_ends + 8  # where the second name ends
    for end in (0, 3, 1 << 31):
        struct.pack_into("<I", whole, place, end)
        layout = sent.layout
        check = crc32c.crc32c(whole[layout.columns : layout.columns_end], crc32c.crc32c(whole[16:64]))
        struct.pack_into("<I", whole, 12, check)
        with pytest.raises(StorageError, match="names outside"):
            read_batch(bytes(whole))
