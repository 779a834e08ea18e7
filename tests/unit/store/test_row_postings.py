"""Row postings built, asked and damaged; rows taken one by one out of a segment's bytes."""

import mmap
import os
import struct
from array import array
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messages import EXPIRY, Message, segment_batches
from tests.stores import numbered

from everlog import _kernels
from everlog.base import Records, StorageError, TopicTable, UsageError, row_column, table_of
from everlog.store.row_finder import RowFinder, to_flags
from everlog.store.row_postings import build_row_postings
from everlog.store.row_reader import RowReader

GAP = b"-" * 40  # what stands between batches in a file


class Made:
    """A segment in memory, as a log would write it, with its row postings."""

    def __init__(self, runs: list[list[Message]], base: int = 100, step_us: int = 10) -> None:
        self.batches = segment_batches(runs, base, step_us, named=len(runs) % 2 == 1)
        data = bytearray(GAP)
        self.positions = array("Q")
        for records in self.batches:
            self.positions.append(len(data))
            data += records.to_bytes() + GAP
        self.log = bytes(data)
        self.table = self.batches[-1].table
        self.names = self.table.all_names()
        self.rows = [row for records in self.batches for row in records.rows()]
        self.postings = build_row_postings(self.table, [topics_of(records) for records in self.batches])

    def finder(self, postings: object = None) -> RowFinder:
        return RowFinder(self.postings if postings is None else postings)

    def row_reader(self, log: object = None) -> RowReader:
        return RowReader(
            self.log if log is None else log,
            memoryview(array("Q", [records.base_offset for records in self.batches])),
            memoryview(self.positions),
            memoryview(array("I", [records.size for records in self.batches])),
            memoryview(array("I", [records.count for records in self.batches])),
        )


def topics_of(records: Records) -> memoryview:
    start = records.start + records.layout.topics
    return memoryview(bytes(records.data))[start : start + 4 * records.count].cast("I")


def unpacked(found: bytearray) -> list[tuple[int, int]]:
    return [(word >> 32, word & 0xFFFFFFFF) for (word,) in struct.iter_unpack("<Q", found)]


def named(records: Records) -> list[tuple[object, ...]]:
    return [(row[0], row[1], records.table.name(row[2]), *row[3:]) for row in records.rows()]


def three_runs() -> Made:
    return Made([numbered(9), numbered(12, topics=4), [(b"late", 2, b"", b"x"), (b"t/1/x", 0, EXPIRY, b"")]])


words = st.lists(st.sampled_from([b"a", b"b/c", b"d", b"e/e/e", b"x" * 200]), min_size=1, max_size=20)


@given(st.lists(words, min_size=1, max_size=6), st.data())
def test_the_rows_of_chosen_topics_are_found_in_order(runs: list[list[bytes]], data: st.DataObject) -> None:
    made = Made([[(topic, 2, b"", b"%d" % n) for n, topic in enumerate(run)] for run in runs])
    finder = made.finder()
    assert (finder.topics, finder.rows) == (len(made.names), len(made.rows))
    chosen = sorted(data.draw(st.sets(st.integers(0, finder.topics - 1))))
    first = data.draw(st.integers(0, finder.rows))
    stop = data.draw(st.integers(first, finder.rows))
    ids = row_column(chosen)
    expected = [
        (number, chosen.index(row[2]))
        for number, row in enumerate(made.rows)
        if row[2] in chosen and first <= number < stop
    ]
    found = finder.find(ids, first, stop)
    assert found is not None
    assert unpacked(found) == expected
    answer = finder.choose(ids)
    assert answer is not None
    table, total = answer
    assert table.all_names() == [made.names[topic] for topic in chosen]
    assert total == finder.count(ids) == sum(row[2] in chosen for row in made.rows)


@given(st.lists(words, min_size=1, max_size=6), st.data())
def test_rows_are_taken_as_they_were_written(runs: list[list[bytes]], data: st.DataObject) -> None:
    drawn = st.tuples(st.sampled_from([0, 2, 5]), st.sampled_from([b"", EXPIRY]), st.binary(max_size=30))
    made = Made([[(topic, *data.draw(drawn)) for topic in run] for run in runs], base=1 << 40)
    chosen = sorted(data.draw(st.sets(st.integers(0, len(made.names) - 1), min_size=1)))
    ids = row_column(chosen)
    finder, row_reader = made.finder(), made.row_reader()
    found = finder.find(ids, 0, finder.rows)
    answer = finder.choose(ids)
    assert found is not None
    assert answer is not None
    taken: list[tuple[object, ...]] = []
    step = data.draw(st.integers(1, 7))
    while 8 * len(taken) < len(found):
        stop = min(len(found) // 8, len(taken) + step)
        records = row_reader.take(
            found, len(taken), stop, ids, answer[0], data.draw(st.sampled_from([1, 200, 1 << 30]))
        )
        assert records is not None
        assert records.verify()
        assert records.with_offsets
        taken += named(records)
    assert taken == [(row[0], row[1], made.names[row[2]], *row[3:]) for row in made.rows if row[2] in chosen]


def test_many_rows_are_sorted_over_every_digit() -> None:
    topics = [n * 7919 % 3 for n in range(9_000)]
    postings = build_row_postings(
        table_of([b"a", b"b", b"c"]), [memoryview(array("I", topics[at : at + 1000])) for at in range(0, 9000, 1000)]
    )
    found = RowFinder(postings).find(row_column([0, 2]), 0, 9_000)
    assert found is not None
    assert unpacked(found) == [(row, topic // 2) for row, topic in enumerate(topics) if topic != 1]


def test_a_batch_ends_where_its_times_can_not_reach() -> None:
    made = Made([[(b"a", 2, b"", b"1")], [(b"a", 2, b"", b"2")]], step_us=0x1_0000_0000)
    ids = row_column([0])
    found = made.finder().find(ids, 0, 2)
    answer = made.finder().choose(ids)
    assert found is not None
    assert answer is not None
    for place in (0, 1):
        records = made.row_reader().take(found, place, 2, ids, answer[0], 1 << 30)
        assert records is not None
        assert [row[5] for row in records.rows()] == [b"%d" % (place + 1)]


def test_no_damaged_byte_of_the_lists_changes_an_answer() -> None:
    made = three_runs()
    ids = row_column([1, 3, 5])
    clean = made.finder().choose(ids), made.finder().find(ids, 0, len(made.rows))
    assert clean[0] is not None
    for position in range(len(made.postings)):
        postings = bytearray(made.postings)
        postings[position] ^= 0x04
        try:
            finder = made.finder(bytes(postings))
            answer = finder.choose(ids)
            found = finder.find(ids, 0, len(made.rows))
        except (StorageError, UsageError):
            continue
        if answer is not None:  # the damage is another topic's
            assert (answer[0].all_names(), answer[1], found) == (clean[0][0].all_names(), clean[0][1], clean[1])


def test_no_damaged_byte_of_the_segment_is_taken() -> None:
    made = three_runs()
    ids = row_column([1, 3, 5])
    found = made.finder().find(ids, 0, len(made.rows))
    answer = made.finder().choose(ids)
    assert found is not None
    assert answer is not None
    clean = made.row_reader().take(found, 0, len(found) // 8, ids, answer[0], 1 << 30)
    assert clean is not None
    refused = 0
    for position in range(len(made.log)):
        log = bytearray(made.log)
        log[position] ^= 0x40
        row_reader = made.row_reader(bytes(log))
        rows: list[tuple[object, ...]] = []
        while len(rows) < clean.count:
            records = row_reader.take(found, len(rows), clean.count, ids, answer[0], 1 << 30)
            if records is None:
                refused += 1
                break
            rows += records.rows()
        assert rows == clean.rows()[: len(rows)], position
    assert refused > 100


def test_a_row_that_holds_another_topic_is_not_taken() -> None:
    made = three_runs()
    ids = row_column([0, 1])
    answer = made.finder().choose(ids)
    assert answer is not None
    wrong = bytearray(struct.pack("<2Q", 0 << 32 | 0, 1 << 32 | 0))  # row 1 is topic 1's
    assert made.row_reader().take(wrong, 0, 2, ids, answer[0], 1 << 30) is None
    assert made.row_reader().take(wrong, 0, 1, ids, answer[0], 1 << 30) is not None


@pytest.mark.parametrize("words", [[5 << 32, 4 << 32], [3 << 32, 3 << 32], [0 << 32 | 9]])
def test_rows_that_do_not_rise_or_were_not_asked_for_are_not_taken(words: list[int]) -> None:
    made = Made([[(b"a", 2, b"", b"%d" % n) for n in range(9)]])
    found = bytearray(struct.pack(f"<{len(words)}Q", *words))
    assert made.row_reader().take(found, 0, len(words), row_column([0]), TopicTable(), 1 << 30) is None


def test_what_can_not_be_asked_is_refused() -> None:
    made = three_runs()
    finder, row_reader = made.finder(), made.row_reader()
    table = TopicTable()
    for ids in (row_column([99]), row_column([1, 1]), row_column([2, 1])):
        for ask in (finder.choose, finder.count, lambda ids: finder.find(ids, 0, 1)):
            with pytest.raises(UsageError):
                ask(ids)
    for first, stop in ((0, 99), (3, 2), (-1, 2)):
        with pytest.raises(UsageError):
            finder.find(row_column([0]), first, stop)
        with pytest.raises(UsageError):
            row_reader.take(bytearray(16), first, stop, row_column([0]), table, 1)
    with pytest.raises(UsageError):
        row_reader.take(bytearray(struct.pack("<Q", 99 << 32)), 0, 1, row_column([0]), table, 1)
    with pytest.raises(UsageError):
        row_reader.start_row(4)
    with pytest.raises(UsageError):
        row_reader.offset(len(made.rows))
    with pytest.raises(UsageError):
        build_row_postings(table_of([b"a"]), [memoryview(array("I", [1]))])


def test_a_segment_that_is_not_the_indexed_one_is_not_read() -> None:
    made, other = three_runs(), three_runs()
    other.batches = Made([numbered(9), numbered(12, topics=4), numbered(2)], base=101).batches
    ids = row_column([1])
    found = made.finder().find(ids, 0, len(made.rows))
    assert found is not None
    assert made.row_reader().take(found, 0, 2, ids, TopicTable(), 1 << 30) is not None
    assert other.row_reader().take(found, 0, 2, ids, TopicTable(), 1 << 30) is None


def test_rows_have_the_offsets_of_their_batches() -> None:
    made = three_runs()
    row_reader = made.row_reader()
    assert [row_reader.start_row(batch) for batch in range(4)] == list(accumulate([9, 12, 2], initial=0))
    assert [row_reader.offset(row) for row in range(row_reader.rows)] == [row[0] for row in made.rows]


@pytest.mark.parametrize("size", [0, 10, 31, 32, 100])
def test_lists_that_are_cut_short_are_refused(size: int) -> None:
    with pytest.raises(StorageError):
        RowFinder(three_runs().postings[:size])


def test_an_unknown_version_is_refused_not_guessed() -> None:
    import crc32c

    postings = bytearray(three_runs().postings)
    struct.pack_into("<I", postings, 4, 2)
    struct.pack_into("<I", postings, 28, crc32c.crc32c(bytes(postings[:28])))
    with pytest.raises(StorageError, match="unknown version"):
        RowFinder(bytes(postings))


def test_flags_are_set_for_the_ids_that_are_there() -> None:
    assert to_flags(row_column([0, 2, 9]), 4) == bytearray((1, 0, 1, 0))
    assert to_flags(row_column([]), 0) == bytearray()


@pytest.mark.skipif(bool(_kernels.interpreted()), reason="only compiled code survives a lost page")
def test_a_mapped_file_that_is_cut_short_is_an_answer_and_not_the_end(tmp_path: Path) -> None:
    payload = os.urandom(3_000)
    made = Made([[(b"a", 2, b"", payload)] for _ in range(20)])
    answers: list[object] = []
    for name, data in (("log", made.log), ("postings", made.postings * 400)):
        path = tmp_path / name
        path.write_bytes(data)
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            if name == "log":
                ids = row_column([0])
                found = made.finder().find(ids, 0, 20)
                answer = made.finder().choose(ids)
                assert found is not None
                assert answer is not None
                row_reader = made.row_reader(mapped)
                assert row_reader.take(found, 0, 20, ids, answer[0], 1 << 30) is not None
                os.truncate(path, 4096)
                answers.append(row_reader.take(found, 0, 20, ids, answer[0], 1 << 30))
            else:
                finder = RowFinder(memoryview(mapped)[: len(made.postings)])
                os.truncate(path, 0)
                answers += [finder.choose(row_column([0])), finder.find(row_column([0]), 0, 20)]
                assert finder.count(row_column([0])) == -1
                with pytest.raises(StorageError):
                    RowFinder(memoryview(mapped)[: len(made.postings)])
    assert answers == [None, None, None]


def test_publishers_are_taken_with_rows_and_only_from_columns_that_are_whole() -> None:
    made = three_runs()
    ids = row_column(range(len(made.names)))
    finder = made.finder()
    chosen, found = finder.choose(ids), finder.find(ids, 0, finder.rows)
    assert chosen is not None
    assert found is not None
    chosen[0].publishers = made.batches[-1].table.publishers
    last = len(found) // 8
    records = made.row_reader().take(found, 0, last, ids, chosen[0], 1 << 30, True)
    assert records is not None
    assert records.verify()
    expected = [one.publisher(k) for one in made.batches for k in range(one.count)]
    assert [records.publisher(k) for k in range(last)] == expected
    assert len(set(expected)) == 3
    position = made.positions[1] + made.batches[1].layout.publishers
    wrong = bytearray(made.log)
    wrong[position] ^= 1
    reader = made.row_reader(bytes(wrong))
    assert reader.take(found, 0, last, ids, chosen[0], 1 << 30, True) is None
    plain = reader.take(found, 0, last, ids, chosen[0], 1 << 30)
    assert plain is not None
    assert (named(plain), plain.layout.publishers) == (named(records), 0)
