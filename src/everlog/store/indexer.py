"""The side file's section that makes filtered reads cheap: the topic index, followed by the row postings.

Layout, little-endian: a header of 32 bytes (magic "EVSX", version u32, bytes of the topic index u64, bytes of the row
postings u64, zero u32, CRC-32C of the 28 bytes before it), the topic index padded to 8 bytes, the row postings.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import crc32c

from everlog.base import StorageError, TopicTable
from everlog.store.row_postings import build_row_postings
from everlog.topics import index_parts

MAGIC = b"EVSX"
VERSION = 1
HEADER = struct.Struct("<4sIQQII")


class TopicIndexer:
    """The log's `Indexer`."""

    def build(self, names: TopicTable, batch_topics: Sequence[memoryview]) -> list[bytes]:
        """Return the section of a segment with these topics, in parts, given each batch's column of topic ids."""
        index = index_parts(names)
        size = sum(map(len, index))
        postings = build_row_postings(names, batch_topics)
        head = HEADER.pack(MAGIC, VERSION, size, len(postings), 0, 0)[:-4]
        return [head, struct.pack("<I", crc32c.crc32c(head)), *index, bytes(-size % 8), postings]


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """The places of the two parts of a section."""

    index_at: int
    index_bytes: int
    postings_at: int
    postings_bytes: int


def read_plan(head: bytes, size: int) -> SectionPlan:
    """Return the parts of a section of `size` bytes that begins with `head`; raise StorageError if it is none."""
    if len(head) < HEADER.size:
        raise StorageError("the segment's topic section is cut short")
    magic, version, index_bytes, postings_bytes, _, check = HEADER.unpack_from(head)
    if magic != MAGIC or crc32c.crc32c(head[: HEADER.size - 4]) != check:
        raise StorageError("the segment's topic section fails its check")
    if version != VERSION:
        raise StorageError(f"topic section version {version} is not known", hint="read it with a newer Everlog")
    postings_at = HEADER.size + index_bytes + -index_bytes % 8
    if postings_at + postings_bytes != size:
        raise StorageError("the segment's topic section is cut short")
    return SectionPlan(HEADER.size, index_bytes, postings_at, postings_bytes)
