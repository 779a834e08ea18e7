"""STUB with the final signatures (being filled in now)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everlog.base import MessageColumns, Records, StorageError, TopicTable
from everlog.commitlog.ports import Disk, Indexer
from everlog.commitlog.settings import LogSettings


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in a file that can't be trusted: what, where, and which offsets it takes away."""

    path: str
    position: int
    what: str
    from_offset: int
    to_offset: int


class BatchIndex:
    """Where each batch of a segment stands, as columns: row `k` of each is batch `k`. Fenced batches have no row.

    NOTE: batches are NOT back to back in the file (a 32-byte frame stands before each): read a range that covers rows
    i..j and open `Records(data, positions[k] - range_start, table)`.
    """

    offsets: memoryview  # Q: offset of the first record
    first_times: memoryview  # Q
    last_times: memoryview  # Q
    positions: memoryview  # Q: of the batch's first byte in the segment file
    sizes: memoryview  # I
    counts: memoryview  # I

    def __len__(self) -> int: ...
    def find(self, offset: int) -> int: ...  # row that holds the offset, or the first behind it; len() when none


class SideSection:
    """A checked section of the side file."""

    size: int

    def read_at(self, position: int, length: int) -> bytes: ...


class SegmentView:
    """One segment as it was when asked for; good to read even when it is merged or removed meanwhile."""

    base_offset: int
    end_offset: int
    first_time: int
    last_time: int
    bytes: int
    sealed: bool
    table: TopicTable  # names of the segment's topic ids (property, loaded when first asked for)

    def read_at(self, position: int, length: int) -> bytes: ...
    def batches(self) -> BatchIndex: ...  # committed batches only
    def side(self, section: str) -> SideSection | None: ...  # "topics" is the Indexer's; None when not sealed (yet)
    def read(self, first: int, last: int) -> list[Records]: ...  # rows first..last-1 of batches(), verified; damaged ones left out


class ShardLog:
    end: int
    committed: int
    start: int
    on_commit: Callable[[ShardLog, int], None] | None
    on_failure: Callable[[ShardLog, StorageError], None] | None
    damage: list[Damage]

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        settings: LogSettings | None = None,
        *,
        indexer: Indexer | None = None,
        writable: bool = True,
        background: bool = True,  # False: no threads; the caller drives commit_step() and seal_step()
        not_below: int = 0,  # the next offset is at least this
        now_us: Callable[[], int] = ...,
        random_bytes: Callable[[int], bytes] = ...,
    ) -> ShardLog: ...

    def append(
        self, columns: MessageColumns, start: int, stop: int, now_us: int, table: TopicTable,
        routes: bytearray | None = None, wanted: int = 0,
    ) -> int: ...
    def commit(self) -> None: ...
    def wait_committed(self, offset: int, timeout: float | None = None) -> None: ...
    def read(self, offset: int, max_bytes: int) -> list[Records]: ...
    def segments(self) -> list[SegmentView]: ...
    def offset_at(self, time_us: int) -> int: ...
    def refresh(self) -> int: ...  # read-only: take in what the writer committed since; the committed offset
    def run_retention(self, now_us: int, protect: int | None = None) -> Any: ...
    def close(self) -> None: ...
