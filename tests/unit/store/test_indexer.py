"""The side file's topic section: what is in it, and that a damaged or foreign one is refused."""

import struct
from array import array

import crc32c
import pytest

from everlog.base import StorageError, row_column, table_of
from everlog.store import TopicIndexer
from everlog.store.indexer import HEADER, read_plan
from everlog.store.row_finder import RowFinder
from everlog.topics import TopicIndex, parse_filter

NAMES = [b"a/b", b"a/c", "ü/b".encode()]
COLUMNS = [memoryview(array("I", [0, 2])), memoryview(array("I", [1, 0]))]
SECTION = b"".join(TopicIndexer().build(table_of(NAMES), COLUMNS))


def test_a_section_holds_the_topic_index_and_the_row_lists() -> None:
    plan = read_plan(SECTION[: HEADER.size], len(SECTION))
    index = TopicIndex.from_buffer(SECTION[plan.index_at : plan.index_at + plan.index_bytes])
    postings = SECTION[plan.postings_at : plan.postings_at + plan.postings_bytes]
    assert list(index.match(parse_filter("+/b"))) == [0, 2]
    assert RowFinder(postings).find(row_column([0, 2]), 0, 4) == bytearray(struct.pack("<3Q", 0, 1 << 32 | 1, 3 << 32))
    assert plan.postings_at % 8 == 0


def test_a_segment_without_records_has_a_section_too() -> None:
    section = b"".join(TopicIndexer().build(table_of([]), []))
    plan = read_plan(section[: HEADER.size], len(section))
    assert RowFinder(section[plan.postings_at :]).rows == 0


def test_no_damaged_byte_of_the_header_is_believed() -> None:
    for position in range(HEADER.size):
        head = bytearray(SECTION[: HEADER.size])
        head[position] ^= 1
        with pytest.raises(StorageError):
            read_plan(bytes(head), len(SECTION))


@pytest.mark.parametrize("size", [0, 31, len(SECTION) - 1, len(SECTION) + 8])
def test_a_section_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(StorageError):
        read_plan(SECTION[: min(size, HEADER.size)], size)


def test_an_unknown_version_is_refused_not_guessed() -> None:
    head = bytearray(SECTION[: HEADER.size])
    struct.pack_into("<I", head, 4, 2)
    struct.pack_into("<I", head, HEADER.size - 4, crc32c.crc32c(bytes(head[:-4])))
    with pytest.raises(StorageError, match="version 2"):
        read_plan(bytes(head), len(SECTION))
