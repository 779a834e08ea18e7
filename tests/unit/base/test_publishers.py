"""Who has published a record, and with which packet id: columns of a batch that are there only if they are used."""

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS, Twin, needs_both

from everlog.base import (
    GONE,
    NO_PUBLISHER,
    StorageError,
    UsageError,
    checked_columns,
    columns_range,
    lost_publisher,
    name_publisher,
    row_column,
    split_publisher,
    with_all_names,
)

Sent = tuple[bytes, int, int, bytes]  # topic, QoS, packet id, payload
Fact = tuple[bytes, bytes, bytes | None, int]  # topic, payload, publisher, packet id
TOPICS = (b"a", b"b/c", b"d" * 300)
VECTOR = Path(__file__).parents[2] / "vectors" / "batch-v2" / "batches.json"
NAMES = (b"", b"c", b"client\0user", "ü".encode() * 400, b"x" * 65535)

some_messages = st.lists(
    st.tuples(st.sampled_from(TOPICS), st.integers(0, 2), st.integers(1, 65535), st.binary(max_size=20)),
    min_size=1,
    max_size=8,
)
publishers = st.one_of(st.none(), st.tuples(st.sampled_from(range(len(NAMES))), st.booleans()))


def columns_of(twin: Twin, sent: list[Sent], table: Any) -> Any:
    columns = twin.MessageColumns(len(sent))
    source = bytearray()
    for i, (topic, qos, packet_id, payload) in enumerate(sent):
        struct.pack_into("<I", columns.topics, 4 * i, table.intern(topic))
        struct.pack_into("<H", columns.packet_ids, 2 * i, packet_id)
        columns.flags[i] = qos << 1
        for column in (columns.property_starts, columns.payload_starts):
            struct.pack_into("<I", column, 4 * i, len(source))
        source += payload
        struct.pack_into("<I", columns.payload_ends, 4 * i, len(source))
    columns.source = bytes(source)
    return columns


class Writer:
    """A segment's builder, and what its batches must say."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        self.builder = twin.RecordBuilder()
        self.table = twin.TopicTable(3)
        self.names = {
            (name, keeps): twin.PublisherName(NAMES[name], keeps)
            for name in range(len(NAMES))
            for keeps in (False, True)
        }
        self.facts: list[Fact] = []
        self.batches: list[Any] = []
        self.offset = 0

    def _fact(self, one: Sent, who: tuple[int, bool] | None) -> Fact:
        topic, qos, packet_id, payload = one
        kept = packet_id if who is not None and who[1] and qos == 2 else 0
        return topic, payload, None if who is None else NAMES[who[0]], kept

    def run(self, sent: list[Sent], who: tuple[int, bool] | None) -> None:
        """Append a run of one connection."""
        publisher = None if who is None else self.names[who]
        columns = columns_of(self.twin, sent, self.table)
        self.builder.append(columns, 0, len(sent), 5, self.table, publisher=publisher)
        self.facts += [self._fact(one, who) for one in sent]

    def turn(self, sent: list[Sent], who: list[tuple[int, bool] | None], wanted: set[bytes]) -> None:
        """Append the messages of several connections, of which only some topics are taken."""
        columns = columns_of(self.twin, sent, self.table)
        names = list(dict.fromkeys(who))
        places = bytearray(struct.pack(f"<{len(who)}I", *map(names.index, who)))
        column = self.twin.PublisherColumn([None if one is None else self.names[one] for one in names], places)
        routes = bytearray(b"".join(bytes((7 if name in wanted else 9,)) * 4 for name in self.table.all_names()))
        taken = self.builder.append(columns, 0, len(sent), 6, self.table, routes, 7, publisher=column)
        facts = [self._fact(*pair) for pair in zip(sent, who, strict=True) if pair[0][0] in wanted]
        assert taken == len(facts)
        self.facts += facts

    def take(self, rows: int = -1) -> Any:
        records = self.builder.take(self.offset, rows)
        assert records.verify()
        again = self.twin.Records(bytes(records.to_bytes()), 0, records.table)
        assert (again.verify(), again.rows()) == (True, records.rows())
        assert said([again]) == said([records])
        self.offset += len(records)
        self.batches.append(records)
        return records


def said(batches: list[Any]) -> list[Fact]:
    """Return what batches say of their rows."""
    found = []
    for records in batches:
        for k in range(len(records)):
            _, _, topic, _, _, payload = records.row(k)
            who = records.publisher(k)
            name = None if who == NO_PUBLISHER else records.table.publishers.name(who)
            found.append((records.table.name(topic), payload, name, records.packet_id(k)))
    return found


def written(twin: Twin, seed: int) -> Writer:
    """Return batches of runs and turns of many kinds."""
    random, writer = Random(seed), Writer(twin)
    named = random.random() < 0.8
    for _ in range(random.randrange(2, 12)):
        sent = [
            (random.choice(TOPICS), random.randrange(3), random.choice((1, 65535, 256)), bytes(random.randrange(9)))
            for _ in range(random.randrange(1, 9))
        ]
        kind = random.random() if named else 0.0
        if kind < 0.3:
            writer.run(sent, None)
        elif kind < 0.7:
            writer.run(sent, (random.randrange(len(NAMES)), random.random() < 0.5))
        else:
            some = [None, *((random.randrange(len(NAMES)), random.random() < 0.5) for _ in range(3))]
            who = [random.choice(some) for _ in sent]
            writer.turn(sent, who, set(random.sample(TOPICS, 2)))
        while len(writer.builder) and random.random() < 0.5:
            writer.take(random.randrange(len(writer.builder)) + 1)
    if len(writer.builder):
        writer.take()
    return writer


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("seed", range(30))
def test_every_row_says_who_sent_it(twin: Twin, seed: int) -> None:
    writer = written(twin, seed)
    assert said(writer.batches) == writer.facts
    named = [name for records in writer.batches for name in records.new_publishers()]
    assert len(named) == len(set(named))
    assert set(named) == {fact[2] for fact in writer.facts} - {None}


@needs_both
@pytest.mark.parametrize("seed", range(20))
def test_both_twins_write_the_same_bytes(seed: int) -> None:
    one, other = (
        [bytes(records.to_bytes()) for records in [*made, twin.gather([(part, None) for part in made])]]
        for twin in TWINS
        for made in [written(twin, seed).batches]
    )
    assert one == other


@pytest.mark.parametrize("twin", TWINS)
@given(sent=some_messages, who=publishers)
def test_a_run_has_one_publisher(twin: Twin, sent: list[Sent], who: tuple[int, bool] | None) -> None:
    writer = Writer(twin)
    writer.run(sent, who)
    records = writer.take()
    assert said([records]) == writer.facts
    kind = records.layout.kind
    assert bool(kind & 0x04) == (who is not None)
    assert bool(kind & 0x08) == (who is not None and who[1] and any(one[1] == 2 for one in sent))


@pytest.mark.parametrize("twin", TWINS)
def test_batches_without_publishers_are_what_they_were_before(twin: Twin) -> None:
    writer = Writer(twin)
    writer.run([(b"a", 2, 5, b"x"), (b"b/c", 1, 6, b"yy")], None)
    records = writer.take()
    assert (records.layout.kind, records.layout.publishers, records.layout.packet_ids) == (0, 0, 0)
    assert records.size == 64 + 8 + 8 + 8 + 8 + 16 + 8 + 16 + 8
    assert (records.new_publishers(), records.table.publishers) == ([], None)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("seed", range(12))
def test_merged_batches_say_the_same_and_carry_all_names(twin: Twin, seed: int) -> None:
    writer = written(twin, seed)
    merged = twin.gather([(part, None) for part in writer.batches])
    assert merged.verify()
    assert said([merged]) == writer.facts
    assert merged.new_publishers() == [name for part in writer.batches for name in part.new_publishers()]
    assert merged.layout.first_publisher == 0


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("seed", range(12))
def test_a_selection_keeps_publishers_and_leaves_packet_ids_out(twin: Twin, seed: int) -> None:
    writer, random = written(twin, seed), Random(seed)
    parts, expected = [], []
    for records in writer.batches:
        rows = sorted(random.sample(range(len(records)), random.randrange(1, len(records) + 1)))
        parts.append((records, row_column(rows)))
        expected += [(*fact[:3], 0) for fact in (said([records])[row] for row in rows)]
    picked = twin.gather(parts)
    assert (picked.verify(), said([picked]), picked.new_publishers()) == (True, expected, [])
    assert not picked.layout.packet_ids
    again = twin.gather([(picked, row_column([len(picked) - 1]))])
    assert said([again]) == expected[-1:]


@pytest.mark.parametrize("twin", TWINS)
def test_batches_whose_publishers_do_not_follow_each_other_are_not_merged(twin: Twin) -> None:
    writer = Writer(twin)
    for number in range(3):
        writer.run([(b"a", 0, 1, b"")], (number, False))
        writer.take()
    one, two, three = writer.batches
    assert twin.gather([(one, None), (two, None)]).new_publishers() == [NAMES[0], NAMES[1]]
    other = Writer(twin)
    other.run([(b"a", 0, 1, b"")], (0, False))
    other.take()
    other.run([(b"a", 0, 1, b"")], (0, False))
    follower = other.take()
    moved = twin.Records(bytes(follower.to_bytes()), 0, one.table)
    later = bytearray(two.to_bytes())
    later[two.layout.publishers - 12] ^= 4
    gap = twin.Records(bytes(later), 0, one.table)
    with pytest.raises(UsageError, match="does not go on with the publishers"):
        twin.gather([(one, None), (gap, None)], True)
    assert twin.gather([(one, None), (moved, None)]).new_publishers() == [NAMES[0]]
    assert three.layout.first_publisher == 2


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("seed", range(12))
def test_emptied_records_have_no_publisher_and_only_those_that_stay_are_named(twin: Twin, seed: int) -> None:
    writer = written(twin, seed)
    gone = {TOPICS[seed % 3]}
    table = twin.TopicTable()
    old = writer.batches[0].table.all_names()
    ids = bytearray(4 * len(old))
    special, made = table.intern(GONE), []
    for records in writer.batches:
        brought = [GONE] if not made else []
        for topic in range(records.first_new_topic, records.first_new_topic + records.new_topics):
            number = special
            if old[topic] not in gone:
                number = table.intern(old[topic])
                brought.append(old[topic])
            struct.pack_into("<I", ids, 4 * topic, number)
        made.append(twin.empty_topics(records, ids, special, brought, table))
    assert all(records.verify() for records in made)
    assert said(made) == [(GONE, b"", None, 0) if fact[0] in gone else fact for fact in writer.facts]
    named = [name for records in made for name in records.new_publishers()]
    assert sorted(named) == sorted({fact[2] for fact in writer.facts if fact[0] not in gone} - {None})
    assert said([twin.gather([(part, None) for part in made])]) == said(made)


@pytest.mark.parametrize("seed", range(12))
def test_a_batch_that_begins_a_segment_names_all_publishers_so_far(seed: int) -> None:
    writer = written(TWINS[0], seed)
    names: list[bytes] = []
    for records in writer.batches:
        names += records.new_publishers()
        leading = with_all_names(records)
        assert (leading.verify(), said([leading]), leading.new_publishers()) == (True, said([records]), names)
        assert leading.layout.first_publisher == 0


@pytest.mark.parametrize("seed", range(8))
def test_columns_are_found_by_the_header_alone_and_checked(seed: int) -> None:
    for records in written(TWINS[0], seed).batches:
        data = bytes(records.to_bytes())
        first, last = columns_range(data[:64])
        assert (first, last) == (records.layout.columns, records.layout.columns_end)
        found = checked_columns(data[:64], data[first:last])
        assert found is not None
        assert list(found[0]) == [row[2] for row in records.rows()]
        assert checked_columns(data[:64], data[first : last - 8]) is None


@pytest.mark.parametrize("twin", TWINS)
def test_damage_is_found_wherever_it_is(twin: Twin) -> None:
    writer = Writer(twin)
    writer.run([(b"a", 2, 65535, b"x"), (b"b/c", 1, 6, b"yy")], (2, True))
    records = writer.take()
    data = bytes(records.to_bytes())
    for position in range(len(data)):
        wrong = bytearray(data)
        wrong[position] ^= 0x01
        try:
            assert not twin.Records(bytes(wrong), 0, records.table).verify()
        except StorageError:
            continue
    for size in range(len(data)):
        with pytest.raises(StorageError):
            twin.Records(data[:size], 0, records.table)


@pytest.mark.parametrize("twin", TWINS)
def test_version_1_has_no_such_columns(twin: Twin) -> None:
    writer = Writer(twin)
    writer.run([(b"a", 2, 1, b"x")], (1, True))
    data = bytearray(writer.take().to_bytes())
    struct.pack_into("<H", data, 4, 1)
    with pytest.raises(StorageError, match="uses a feature"):
        twin.Records(bytes(data), 0, twin.TopicTable())
    struct.pack_into("<HH", data, 4, 2, 0x10)
    with pytest.raises(StorageError, match="uses a feature"):
        twin.Records(bytes(data), 0, twin.TopicTable())


@pytest.mark.parametrize("twin", TWINS)
def test_a_segment_goes_on_with_the_publishers_it_has(twin: Twin) -> None:
    writer = Writer(twin)
    writer.builder.continue_segment([b"a"], 1, [NAMES[1], NAMES[2]])
    writer.run([(b"a", 0, 1, b"1")], (2, False))
    writer.run([(b"a", 0, 1, b"2")], (3, False))
    records = writer.take()
    assert (records.layout.first_publisher, records.new_publishers()) == (2, [NAMES[3]])
    assert said([records]) == writer.facts
    writer.builder.start_segment()
    writer.run([(b"a", 0, 1, b"3")], (2, False))
    records = writer.take()
    assert (records.layout.first_publisher, records.new_publishers()) == (0, [NAMES[2]])


@pytest.mark.parametrize("twin", TWINS)
def test_columns_of_publishers_that_do_not_fit_are_refused(twin: Twin) -> None:
    table, builder = twin.TopicTable(3), twin.RecordBuilder()
    columns = columns_of(twin, [(b"a", 2, 1, b"x"), (b"a", 2, 2, b"y")], table)
    name = twin.PublisherName(b"c", True)
    with pytest.raises(UsageError, match="publishers for 1 of 2 messages"):
        builder.append(columns, 0, 2, 5, table, publisher=twin.PublisherColumn([name], bytearray(4)))
    with pytest.raises(UsageError, match="message 1 is of publisher 1 of 1"):
        builder.append(columns, 0, 2, 5, table, publisher=twin.PublisherColumn([name], bytearray(b"\0\0\0\0\1\0\0\0")))
    assert len(builder) == 0
    assert builder.append(columns, 0, 2, 5, table, publisher=name) == 2
    assert [builder.take(0).packet_id(row) for row in range(1)] == [1]


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("seed", range(8))
def test_publishers_are_a_column_for_arrow(twin: Twin, seed: int) -> None:
    writer = written(twin, seed)
    pieces = [(records, None, 0, len(records)) for records in writer.batches]
    known = 0 if writer.batches[0].table.publishers is None else writer.batches[0].table.publishers.count
    found = memoryview(twin.publisher_column(pieces, known)).cast("I")
    names = [None if number == known else writer.batches[0].table.publishers.name(number) for number in found]
    assert names == [fact[2] for fact in writer.facts]
    assert twin.has_publishers(pieces) == any(names) or names == [None] * len(names)
    rows = [(records, row_column([len(records) - 1]), 0, 1) for records in writer.batches]
    assert len(twin.publisher_column(rows, 0)) == 4 * len(rows)
    assert set(memoryview(twin.publisher_column(rows, 0)).cast("I")) == {0}


def test_a_name_tells_client_and_user() -> None:
    for client, user in (("c", None), ("ü", "me"), ("c", "")):
        assert split_publisher(name_publisher(client, user)) == (client, user)
    assert split_publisher(lost_publisher(5)) == ("", None)


@pytest.mark.parametrize("twin", TWINS)
def test_batches_that_were_written_before_are_read_for_ever(twin: Twin) -> None:
    table = twin.TopicTable()
    table.publishers = twin.TopicTable()
    for one in json.loads(VECTOR.read_text()):
        records = twin.Records(bytes.fromhex(one["bytes"]), 0, table)
        assert records.verify()
        for name in records.new_names():
            table.intern(name)
        for name in records.new_publishers():
            table.publishers.intern(name)
        found = []
        for k, (offset, time_us, topic, flags, properties, payload) in enumerate(records.rows()):
            who = records.publisher(k)
            name = None if who == NO_PUBLISHER else list(split_publisher(table.publishers.name(who)))
            text = table.name(topic).decode()
            found.append([offset, time_us, text, flags, properties.hex(), payload.decode(), name, records.packet_id(k)])
        assert found == one["rows"]
