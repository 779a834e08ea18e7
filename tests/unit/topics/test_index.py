import pytest
from crc32c import crc32c
from pyroaring import BitMap

from everlog.base import StorageError, UsageError, table_of
from everlog.topics import (
    CorruptTopicIndex,
    SectionCache,
    TopicIndex,
    build_index,
    matches,
    parse_filter,
)

NAMES = [f"{'$' if i % 7 == 0 else ''}site{i % 5}/dev{i}/{'t' if i % 2 else 'h/x'}" for i in range(600)] + ["/", "é/☃/"]
FILTERS = [
    "#",
    "+/+/t",
    "site1/#",
    "+/dev17/#",
    "$site2/+/h/+",
    "+/+/#",
    "+/+/+/+",
    "é/☃/",
    "/",
    "no/#",
    "site1/dev1/t",
]


class Reads:
    """An index's bytes behind read_at, with what was read."""

    def __init__(self, data):
        self.data = data
        self.log = []

    def __call__(self, position, length):
        self.log.append((position, length))
        return self.data[position : position + length]


def index_of(names):
    return build_index(table_of([name.encode() for name in names]))


def name_of(index, topic_id):
    return next(index.names(BitMap([topic_id])))[1]


@pytest.fixture(scope="module")
def data():
    return index_of(NAMES)


@pytest.mark.parametrize("text", FILTERS)
def test_filter_selects_what_the_reference_matches(data, text):
    flt = parse_filter(text)
    expected = [i for i, name in enumerate(NAMES) if matches(flt, name)]
    index = TopicIndex.from_buffer(data)
    for _ in range(2):
        found = index.match(flt)
        assert list(found) == expected
        found.clear()  # the caller's own: a cached bitmap must not change with it


def test_names_are_given_by_id(data):
    index = TopicIndex.from_buffer(data)
    assert [name_of(index, i) for i in (0, 127, 128, 601)] == [NAMES[i] for i in (0, 127, 128, 601)]
    wanted = BitMap([3, 130, 131, 600])
    assert list(index.names(wanted)) == [(i, NAMES[i]) for i in wanted]
    assert [name for _, name in index.names(BitMap(range(602)))] == NAMES


def test_index_without_topics_answers():
    index = TopicIndex.from_buffer(index_of([]))
    assert not index.match(parse_filter("#"))
    assert not index.match(parse_filter("a/+"))
    assert list(index.names(BitMap())) == []


def test_topic_of_very_many_levels_is_indexed():
    deep = "/".join(["a"] * 300)
    reads = Reads(index_of(["b", deep]))
    index = TopicIndex(reads)
    assert len(reads.log) == 2  # a directory too large for the first read
    assert list(index.match(parse_filter(deep, max_levels=300))) == [1]
    assert list(index.match(parse_filter("a/+/+/#"))) == [1]


def test_opening_is_one_small_read_and_a_query_reads_only_what_it_needs(data):
    reads = Reads(data)
    index = TopicIndex(reads)
    assert reads.log == [(0, 1024)]
    reads.log.clear()
    assert not index.match(parse_filter("no/such/filter/#"))
    assert sum(length for _, length in reads.log) < 1_500
    reads.log.clear()
    name_of(index, 5)
    assert sum(length for _, length in reads.log) < len(data) // 10


def test_what_was_loaded_is_not_read_again_until_dropped(data):
    reads = Reads(data)
    index = TopicIndex(reads)
    flt = parse_filter("site1/+/t")
    index.match(flt)
    reads.log.clear()
    index.match(flt)
    assert reads.log == []
    index.drop_cache()
    index.match(flt)
    assert reads.log


def test_shared_cache_keeps_indexes_apart_and_within_its_limit(data):
    cache = SectionCache(20_000)
    other = [name.replace("dev", "veh") for name in NAMES]  # of the same lengths, so at the same positions
    indexes = [(TopicIndex.from_buffer(index_of(names), cache=cache), names) for names in (NAMES, other)]
    for text in FILTERS:
        flt = parse_filter(text)
        for index, names in indexes:
            assert list(index.match(flt)) == [i for i, name in enumerate(names) if matches(flt, name)]
            assert name_of(index, 300) == names[300]
            assert cache.held_bytes <= 20_000
    assert len(cache) > 0
    for index, _ in indexes:
        index.drop_cache()
    assert (len(cache), cache.held_bytes) == (0, 0)


def test_cache_of_no_bytes_keeps_nothing_and_a_negative_one_is_refused(data):
    cache = SectionCache(0)
    index = TopicIndex.from_buffer(data, cache=cache)
    assert name_of(index, 5) == NAMES[5]
    assert len(cache) == 0
    with pytest.raises(UsageError):
        SectionCache(-1)


def test_tokens_that_begin_alike_are_found():
    tokens = [f"{'device-' * n}{m:03d}" for n in range(4) for m in range(100)] + [
        "device-",
        "device",
        "device-d",
        "device-0",
    ]
    names = [f"{token}/{'é' * (k % 7)}/{k % 40}" for k, token in enumerate(tokens * 3)]
    index = TopicIndex.from_buffer(index_of(names))
    for text in (
        [f"{token}/+/#" for token in tokens] + [f"+/{'é' * n}/+" for n in range(8)] + ["+/+/7", "device-devic/#"]
    ):
        flt = parse_filter(text)
        assert list(index.match(flt)) == [i for i, name in enumerate(names) if matches(flt, name)]


def test_ids_that_the_index_does_not_have_are_refused(data):
    index = TopicIndex.from_buffer(data)
    for ids in ([602], [0, 602]):
        with pytest.raises(UsageError, match="602"):
            list(index.names(BitMap(ids)))


def test_damage_names_the_file_the_position_and_what_to_do(data):
    index = TopicIndex.from_buffer(data)
    name_of(index, 0)
    position = index._directory[1, 0].position
    damaged = bytearray(data)
    damaged[position] ^= 1
    index = TopicIndex.from_buffer(damaged, label="00000042.topics")
    with pytest.raises(CorruptTopicIndex, match=f"00000042.topics: .* at byte {position}") as caught:
        name_of(index, 0)
    assert isinstance(caught.value, StorageError)
    assert caught.value.position == position
    assert "everlog repair" in caught.value.hint
    assert list(index.match(parse_filter("site1/dev1/t"))) == [1]  # what is not damaged still answers


def test_index_cut_short_anywhere_is_noticed(data):
    for length in range(0, len(data), 97):
        with pytest.raises(CorruptTopicIndex, match="cut short"):
            read_all(data[:length])


def test_other_magic_or_version_is_refused(data):
    with pytest.raises(CorruptTopicIndex, match="no topic index"):
        TopicIndex.from_buffer(b"ABCD" + data[4:])
    later = data[:4] + b"\x02\x00" + data[6:36]
    later += crc32c(later).to_bytes(4, "little") + data[40:]
    with pytest.raises(CorruptTopicIndex, match="version 2"):
        TopicIndex.from_buffer(later)


def read_all(data):
    """Ask what reads every part of an index that has an answer in it."""
    index = TopicIndex.from_buffer(data)
    for text in FILTERS:
        index.match(parse_filter(text))
    return list(index.names(BitMap(range(index.topic_count))))


def test_a_bitmap_of_ids_without_a_gap_and_one_with_gaps_are_read_alike():
    names = [f"a/{'x' if n % 3 else 'y'}/{n}" for n in range(400)]
    index = TopicIndex.from_buffer(index_of(names))
    assert list(index.match(parse_filter("a/#"))) == list(range(400))
    assert list(index.match(parse_filter("+/y/+"))) == list(range(0, 400, 3))
    assert index.match(parse_filter("a/+")) == BitMap()


@pytest.mark.parametrize(
    "text", ["a/b", "a/b/+", "a/+", "+/b/#", "+/b/c", "a/#", "/", "//", "+/+", "/+/c", "", "a/bb/c"]
)
def test_names_that_begin_as_the_one_before_have_their_own_levels(text):
    names = [
        "a/b",
        "a/b/c",
        "a/bb/c",
        "a/b/cc",
        "a/",
        "a",
        "a//c",
        "/",
        "//",
        "//c",
        "/c",
        "$a/b",
        "$a/c",
        "a/c/c",
        "b/c/c",
    ]
    for order in (names, names[::-1], sorted(names)):
        index = TopicIndex.from_buffer(index_of(order))
        if text:
            flt = parse_filter(text)
            assert list(index.match(flt)) == [i for i, name in enumerate(order) if matches(flt, name)]
        assert [name for _, name in index.names(BitMap(range(len(order))))] == order
