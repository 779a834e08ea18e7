"""What is stored of a shard's messages: rows of the tail, and the list of segments in the bucket."""

import os
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from everlog.base import Records
from everlog.cluster.link_frames import check_quickly
from everlog.cluster.row_names import pack_names


class TailRow(NamedTuple):
    """A batch as a row of the tail; `origins` has the last message number of each origin in it.

    The first row of a segment has the numbers of all origins.
    """

    base: int
    messages: int  # how many
    epoch: int
    segment: int  # base offset of the segment it belongs to
    nonce: bytes  # random, by which its writer knows it again
    crc: int
    origins: dict[int, int]
    names: bytes
    body: bytes | bytearray | memoryview

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.base + self.messages

    @property
    def size(self) -> int:
        """How many bytes of the tail it takes."""
        return len(self.body) + len(self.names)


@dataclass(frozen=True, slots=True)
class RowFacts:
    """A row of the tail without its body."""

    table: int  # which of the shard's tables it is in
    base: int
    count: int
    epoch: int
    segment: int
    crc: int
    size: int

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.base + self.count


class State(IntEnum):
    """What is known of a segment's object."""

    CLAIMED = 0  # its name is taken; it may be there or not
    PRESENT = 1
    DROPPED = 2  # nobody looks for it any more; it is deleted when no pin can name it


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment in the bucket."""

    base: int
    end: int
    epoch: int
    size: int
    crc: int  # of all behind the segment's header
    name: str


def make_row(records: Records, segment: int, epoch: int, origins: dict[int, int]) -> TailRow:
    """Return the row of a batch."""
    body = records.view()
    return TailRow(
        records.base_offset,
        records.count,
        epoch,
        segment,
        os.urandom(16),
        check_quickly(body),
        origins,
        pack_names(records),
        body,
    )
