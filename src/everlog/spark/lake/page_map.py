"""Where the pages of a Parquet file are: read from its page index when it is written, packed for its readers.

A leaf is a column without children. Rows are counted from the start of their row group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everlog.spark.lake.thrift_compact import ThriftReader

Numbers = npt.NDArray[np.int64]

_MAGIC = b"PAR1"
_TAIL = Struct("<I4s")  # length of the footer, magic
_TAIL_BYTES = 256 << 10  # read at first: usually all of footer and page index
_LEAF = np.dtype(
    [("codec", "<u4"), ("pages", "<u4"), ("values", "<u8"), ("dictionary", "<u8"), ("dictionary_bytes", "<u8")]
)

# fields of Parquet's structs
_ROW_GROUPS, _CHUNKS, _GROUP_ROWS = 4, 1, 3
_ABOUT, _INDEX_POSITION, _INDEX_BYTES = 3, 4, 5
_PATH, _CODEC, _VALUES, _DATA_POSITION, _DICTIONARY_POSITION = 3, 4, 5, 9, 11
_PAGES, _PAGE_POSITION, _PAGE_BYTES, _PAGE_ROW = 1, 1, 2, 3


@dataclass(frozen=True, slots=True)
class LeafPages:
    """The pages of a leaf in a row group; `first_rows` has one more entry, the number of the group's rows.

    Leaves whose pages begin at the same rows share `first_rows`.
    """

    codec: int
    values: int
    dictionary: int  # where the dictionary page is
    dictionary_bytes: int  # 0 if there is none
    positions: Numbers
    sizes: Numbers
    first_rows: Numbers


@dataclass(frozen=True, slots=True)
class PageMap:
    """The leaves of a file, as `column` or `column.child`, the rows of each row group, and its pages by leaf."""

    leaves: tuple[str, ...]
    rows: tuple[int, ...]
    groups: tuple[tuple[LeafPages, ...], ...]


def read_page_map(source: pa.NativeFile) -> PageMap:
    """Return the map of a Parquet file that has a page index."""
    tail = _Tail(source)
    length, magic = _TAIL.unpack(tail.part(tail.size - _TAIL.size, _TAIL.size))
    if magic != _MAGIC:
        raise ValueError("it is no Parquet file")
    groups = ThriftReader(tail.part(tail.size - _TAIL.size - length, length)).struct()[_ROW_GROUPS]
    leaves = tuple(".".join(name.decode() for name in chunk[_ABOUT][_PATH]) for chunk in groups[0][_CHUNKS])
    rows = tuple(group[_GROUP_ROWS] for group in groups)
    return PageMap(leaves, rows, tuple(tuple(_leaf(tail, one, group) for one in group[_CHUNKS]) for group in groups))


class _Tail:
    """The end of a file, read once."""

    def __init__(self, source: pa.NativeFile) -> None:
        self.size = int(source.size())
        self._source = source
        self._start = max(0, self.size - _TAIL_BYTES)
        self._held = source.read_at(self.size - self._start, self._start)

    def part(self, position: int, length: int) -> bytes:
        if position < self._start:
            return bytes(self._source.read_at(length, position))
        return bytes(self._held[position - self._start : position - self._start + length])


def _leaf(tail: _Tail, chunk: dict[int, Any], group: dict[int, Any]) -> LeafPages:
    about = chunk[_ABOUT]
    pages = ThriftReader(tail.part(chunk[_INDEX_POSITION], chunk[_INDEX_BYTES])).struct()[_PAGES]
    dictionary = about.get(_DICTIONARY_POSITION, 0)
    return LeafPages(
        codec=about[_CODEC],
        values=about[_VALUES],
        dictionary=dictionary,
        dictionary_bytes=pages[0][_PAGE_POSITION] - dictionary if dictionary else 0,
        positions=np.array([page[_PAGE_POSITION] for page in pages], np.int64),
        sizes=np.array([page[_PAGE_BYTES] for page in pages], np.int64),
        first_rows=np.array([*(page[_PAGE_ROW] for page in pages), group[_GROUP_ROWS]], np.int64),
    )


def pack_group(leaves: Sequence[LeafPages]) -> bytes:
    """Return a row group's pages: a row for each leaf, then the positions, sizes and first rows of all pages."""
    about = np.array(
        [(one.codec, len(one.sizes), one.values, one.dictionary, one.dictionary_bytes) for one in leaves], _LEAF
    )
    positions = np.concatenate([one.positions for one in leaves]).astype("<u8")
    sizes = np.concatenate([one.sizes for one in leaves]).astype("<u4")
    first_rows = np.concatenate([one.first_rows[:-1] for one in leaves]).astype("<u4")
    return about.tobytes() + positions.tobytes() + sizes.tobytes() + first_rows.tobytes()


def unpack_group(packed: bytes, leaves: int, rows: int) -> tuple[LeafPages, ...]:
    """Return the pages of each leaf of a row group."""
    about = np.frombuffer(packed, _LEAF, leaves)
    ends = np.cumsum(about["pages"], dtype=np.int64)
    pages = int(ends[-1])
    at = about.nbytes
    positions = np.frombuffer(packed, "<u8", pages, at).astype(np.int64)
    sizes = np.frombuffer(packed, "<u4", pages, at + 8 * pages).astype(np.int64)
    first_rows = np.frombuffer(packed, "<u4", pages, at + 12 * pages).astype(np.int64)
    found = []
    layouts: dict[bytes, Numbers] = {}
    begin = 0
    for one, end in zip(about.tolist(), ends.tolist(), strict=True):
        codec, _, values, dictionary, dictionary_bytes = one
        here = slice(begin, end)
        firsts = np.append(first_rows[here], rows)
        firsts = layouts.setdefault(firsts.tobytes(), firsts)
        found.append(LeafPages(codec, values, dictionary, dictionary_bytes, positions[here], sizes[here], firsts))
        begin = end
    return tuple(found)
