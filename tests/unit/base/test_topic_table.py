"""Topic names as small numbers."""

import random
import time

import pytest

from everlog.base import TopicTable, UsageError, table_of


@pytest.mark.parametrize("seed", [0, 1, -1, 1 << 63, (1 << 64) - 1, 1 << 70])
def test_ids_are_dense_in_the_order_of_first_sight(seed: int) -> None:
    table = TopicTable(seed)
    assert [table.intern(name) for name in (b"a", b"b", b"a", b"c/d", b"b")] == [0, 1, 0, 2, 1]
    assert len(table) == table.count == 3
    assert table.all_names() == [b"a", b"b", b"c/d"]
    assert table.all_names(2) == [b"c/d"]
    assert table.name_bytes == 5


def test_lookup_takes_nothing_in() -> None:
    table = TopicTable()
    assert table.lookup(b"a") == -1
    assert table.intern(b"a") == 0
    assert table.lookup(b"a") == 0
    assert table.lookup(b"aa") == -1
    assert len(table) == 1


def test_many_names_are_found_again_through_every_growth() -> None:
    table = TopicTable(9)
    names = [b"sensors/%d/%s" % (i, b"x" * (i % 40)) for i in range(5_000)]
    assert [table.intern(name) for name in names] == list(range(5_000))
    order = list(range(5_000))
    random.Random(1).shuffle(order)
    assert [table.lookup(names[i]) for i in order] == order
    assert table.all_names() == names
    assert table.lookup(b"sensors/5000/") == -1


def test_names_of_every_length_are_told_apart_by_any_byte() -> None:
    table = TopicTable(4)
    names = [b"n" * size for size in range(70)]
    names += [b"n" * at + b"m" + b"n" * (size - at - 1) for size in range(70) for at in range(size)]
    assert [table.intern(name) for name in names] == list(range(len(names)))
    assert [table.lookup(name) for name in names] == list(range(len(names)))


def test_name_may_be_as_long_as_mqtt_allows() -> None:
    table = TopicTable()
    names = [bytes((65 + i,)) * 65_535 for i in range(5)]
    assert [table.intern(name) for name in names] == list(range(5))
    assert table.all_names() == names


def test_full_table_takes_no_new_name_and_still_finds_the_old() -> None:
    by_count, by_bytes = TopicTable(0, max_topics=2), TopicTable(0, max_bytes=4)
    for table in (by_count, by_bytes):
        assert [table.intern(name) for name in (b"aa", b"bb", b"c", b"aa", b"bb")] == [0, 1, -1, 0, 1]
        assert len(table) == 2


def test_reset_forgets_every_name_and_says_so() -> None:
    table = TopicTable(0, max_topics=100)
    for i in range(100):
        table.intern(b"%d" % i)
    before = table.generation
    table.reset()
    assert table.generation == before + 1
    assert (len(table), table.name_bytes, table.all_names()) == (0, 0, [])
    assert table.lookup(b"99") == -1
    assert table.intern(b"99") == 0


@pytest.mark.parametrize("topic", [-1, 1, 1 << 40])
def test_id_that_no_topic_has_is_an_index_error(topic: int) -> None:
    table = TopicTable()
    table.intern(b"a")
    with pytest.raises(IndexError):
        table.name(topic)


def test_empty_name_is_a_name() -> None:
    table = TopicTable()
    assert (table.intern(b""), table.intern(b"a"), table.intern(b""), table.name(0)) == (0, 1, 0, b"")


def test_names_of_the_same_bytes_under_other_seeds_keep_their_own_ids() -> None:
    one, other = TopicTable(1), TopicTable(2)
    assert [one.intern(b"a"), one.intern(b"b"), other.intern(b"b"), other.intern(b"a")] == [0, 1, 0, 1]


def test_a_table_without_a_seed_takes_in_names_that_differ_in_a_few_digits_as_fast_as_others() -> None:
    def cpu_s(seed: int) -> float:
        table, began = TopicTable(seed), time.thread_time()
        for number in range(100_000):
            table.intern(b"%08dxxxxxxxx" % number)
        return time.thread_time() - began

    assert min(cpu_s(0) for _ in range(3)) < 3 * max(cpu_s(0x9E3779B97F4A7C15) for _ in range(3))


def test_a_renewed_name_is_found_under_its_last_id_however_much_comes_after() -> None:
    table = TopicTable(7)
    for number in range(40):
        table.intern(b"n%d" % number)
    for topic in (3, 17, 40):
        renewed = table.renew(topic)
        assert renewed == len(table) - 1
        assert table.name(renewed) == table.name(topic)
    for number in range(40, 2000):
        table.intern(b"n%d" % number)
    assert table.lookup(b"n3") == 42  # renewed twice: as 40, then as 42
    assert table.lookup(b"n17") == 41
    assert table.intern(b"n3") == 42
    assert table.name(3) == b"n3"
    assert [table.lookup(table.name(topic)) for topic in range(43, len(table))] == list(range(43, len(table)))
    with pytest.raises(IndexError):
        table.renew(len(table))
    with pytest.raises(UsageError):
        table.renew(3)


def test_a_full_table_renews_nothing() -> None:
    table = TopicTable(7, max_topics=2)
    table.intern(b"a")
    table.intern(b"b")
    assert table.renew(0) == -1
    assert table.lookup(b"a") == 0


def test_names_that_come_again_in_their_order_have_their_last_ids() -> None:
    table = TopicTable(7)
    names = [b"n%d" % number for number in range(100)]
    ids = [table.intern(name) for name in names]
    for topic in (5, 6, 40):
        ids[topic] = table.renew(topic)
    for _ in range(2):
        assert [table.lookup(name) for name in names] == ids
        assert [table.lookup(name) for name in reversed(names)] == list(reversed(ids))
    ids += [table.intern(b"m%d" % number) for number in range(100)]
    names += [b"m%d" % number for number in range(100)]
    assert [table.intern(name) for name in names] == ids
    assert table.lookup(b"n100") == table.lookup(b"") == -1


def test_names_are_packed_with_where_each_ends() -> None:
    table = table_of([b"a/b", b"", b"\xc3\xa9", b"a/b"])
    ends = [int.from_bytes(table.packed(0, 4)[4 * k : 4 * k + 4], "little") for k in range(4)]
    assert ends == [3, 3, 5, 8]
    assert table.packed(0, 4)[16:] == b"a/b\xc3\xa9a/b"
    assert table.packed(2, 3) == b"\x02\0\0\0\xc3\xa9"
    assert table.packed(4, 4) == b""
    for first, stop in ((0, 5), (3, 2), (-1, 2)):
        with pytest.raises(IndexError):
            table.packed(first, stop)


def test_names_as_they_are_keep_their_order_and_are_found() -> None:
    names = [b"t/%d" % (n * 7919 % 4096) for n in range(4096)]
    table = table_of(names)
    table.place_rest()
    assert [table.lookup(name) for name in reversed(names)] == list(range(4095, -1, -1))
    assert table.lookup(b"t/4096") == -1
    assert table.intern(b"new") == 4096
