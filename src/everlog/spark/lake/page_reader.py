"""Reads some rows of a row group from the pages that hold them, and from no others.

The pages are put behind each other as a small Parquet file in memory, with a footer that says so, and Arrow reads that.
Columns whose pages begin at the same rows share such a file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everlog.spark.lake.page_map import LeafPages, Numbers
from everlog.spark.lake.table_layout import FILE_SCHEMA
from everlog.spark.lake.thrift_compact import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    ThriftReader,
    integer,
    list_of,
    struct,
    text,
)

Place = tuple[int, int]  # position and length
Fetch = Callable[[list[Place]], list[bytes]]  # reads places of a file

_MAGIC = b"PAR1"
_TAIL_BYTES = 8
_ENCODINGS = list_of(I32, [integer(0), integer(3)])  # readers go by what the pages say
_SCHEMA_FIELD = 2
_TYPES = {"BOOLEAN": 0, "INT32": 1, "INT64": 2, "BYTE_ARRAY": 6}


@dataclass(frozen=True, slots=True)
class Runs:
    """Rows of a row group: runs from `starts` to before `stops`, rising, none empty, none touching the next."""

    starts: Numbers
    stops: Numbers

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int((self.stops - self.starts).sum())

    def row_numbers(self) -> Numbers:
        """Return the number of each row."""
        sizes = self.stops - self.starts
        shift = self.starts - np.concatenate(([0], np.cumsum(sizes)[:-1]))
        return np.repeat(shift, sizes) + np.arange(sizes.sum())


def make_runs(starts: Numbers, stops: Numbers) -> Runs:
    """Return rising ranges as runs: those that touch or overlap are one."""
    first = np.concatenate(([True], starts[1:] > np.maximum.accumulate(stops)[:-1]))
    last = np.append(np.flatnonzero(first)[1:], len(starts)) - 1
    return Runs(starts[first], np.maximum.accumulate(stops)[last])


def read_rows(columns: Mapping[str, Sequence[LeafPages]], runs: Runs, fetch: Fetch) -> pa.Table:
    """Return the rows of some columns of a row group; `columns` has the pages of each column's leaves."""
    together: dict[tuple[int, ...], list[str]] = {}
    for name, leaves in columns.items():
        together.setdefault(tuple(dict.fromkeys(id(leaf.first_rows) for leaf in leaves)), []).append(name)
    found: dict[str, pa.ChunkedArray] = {}
    for names in together.values():
        held = _held(columns[names[0]], runs)
        made = _file_of({name: columns[name] for name in names}, held, fetch)
        table = pq.ParquetFile(pa.BufferReader(made)).read(use_threads=False)
        if table.num_rows != held.rows:
            raise OSError(f"pages hold {table.num_rows} rows, not {held.rows}")
        found |= zip(names, _picked(table, held, runs).columns, strict=True)
    return pa.table([found[name] for name in columns], names=list(columns))


def _held(leaves: Sequence[LeafPages], runs: Runs) -> Runs:
    """Return the rows of the pages that hold the wanted rows; those of all leaves of a column end together."""
    while True:
        before = runs.rows
        for leaf in leaves:
            low = np.searchsorted(leaf.first_rows, runs.starts, "right") - 1
            high = np.searchsorted(leaf.first_rows, runs.stops, "left")
            runs = make_runs(leaf.first_rows[low], leaf.first_rows[high])
        if len(leaves) == 1 or runs.rows == before:
            return runs


def _picked(table: pa.Table, held: Runs, wanted: Runs) -> pa.Table:
    """Return the wanted rows of columns that have all rows of some pages."""
    if held.rows == wanted.rows:
        return table
    at = np.searchsorted(held.starts, wanted.starts, "right") - 1
    before = np.concatenate(([0], np.cumsum(held.stops - held.starts)[:-1]))
    starts = before[at] + wanted.starts - held.starts[at]
    if len(starts) == 1:
        return table.slice(int(starts[0]), wanted.rows)
    return table.take(pa.array(Runs(starts, starts + wanted.stops - wanted.starts).row_numbers()))


def _file_of(columns: Mapping[str, Sequence[LeafPages]], held: Runs, fetch: Fetch) -> bytes:
    """Return a Parquet file with one row group, of the pages of some rows."""
    head, leaves = _head(tuple(columns))
    places: list[Place] = []
    chunks = []
    position = len(_MAGIC)
    stretches: dict[int, tuple[Numbers, Numbers]] = {}  # first and last page of each run, by layout
    for (kind, path), pages in zip(leaves, (leaf for name in columns for leaf in columns[name]), strict=True):
        if id(pages.first_rows) not in stretches:
            low = np.searchsorted(pages.first_rows, held.starts, "left")
            stretches[id(pages.first_rows)] = low, np.searchsorted(pages.first_rows, held.stops, "left") - 1
        taken = _places(pages, *stretches[id(pages.first_rows)])
        size = sum(length for _, length in taken)
        chunks.append(_chunk(kind, path, pages, position, size))
        places += taken
        position += size
    rows = integer(held.rows)
    group = struct((1, LIST, list_of(STRUCT, chunks)), (2, I64, integer(position)), (3, I64, rows))
    footer = head + struct((3, I64, rows), (4, LIST, list_of(STRUCT, [group])), behind=_SCHEMA_FIELD)
    return b"".join((_MAGIC, *fetch(places), footer, len(footer).to_bytes(4, "little"), _MAGIC))


def _places(pages: LeafPages, low: Numbers, high: Numbers) -> list[Place]:
    """Return the places of a leaf's dictionary and of stretches from one page to another."""
    starts = pages.positions[low]
    stops = pages.positions[high] + pages.sizes[high]
    stretches = list(zip(starts.tolist(), (stops - starts).tolist(), strict=True))
    return [(pages.dictionary, pages.dictionary_bytes), *stretches] if pages.dictionary_bytes else stretches


def _chunk(kind: int, path: bytes, pages: LeafPages, position: int, size: int) -> bytes:
    """Return the description of a column in the footer."""
    first = position + pages.dictionary_bytes
    about = [
        (1, I32, integer(kind)),
        (2, LIST, _ENCODINGS),
        (3, LIST, path),
        (4, I32, integer(pages.codec)),
        (5, I64, integer(pages.values)),  # of the whole column: readers end where its bytes end
        (6, I64, integer(size)),
        (7, I64, integer(size)),
        (9, I64, integer(first)),
    ]
    if pages.dictionary_bytes:
        about.append((11, I64, integer(position)))
    return struct((2, I64, integer(position)), (3, STRUCT, struct(*about)))


@lru_cache(64)
def _head(columns: tuple[str, ...]) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Return the beginning of a footer, up to the schema of some columns, and each leaf's type and path."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, pa.schema([FILE_SCHEMA.field(name) for name in columns]), store_schema=False):
        pass
    made = sink.getvalue().to_pybytes()
    length = int.from_bytes(made[-_TAIL_BYTES : -_TAIL_BYTES + 4], "little")
    footer = made[-_TAIL_BYTES - length : -_TAIL_BYTES]
    reader = ThriftReader(footer)
    reader.struct(last=_SCHEMA_FIELD)
    schema = pq.ParquetFile(pa.BufferReader(made)).schema
    leaves = [schema.column(number) for number in range(len(schema))]
    return footer[: reader.at], [(_TYPES[leaf.physical_type], _packed_path(leaf.path)) for leaf in leaves]


def _packed_path(path: str) -> bytes:
    return list_of(BINARY, [text(name.encode()) for name in path.split(".")])
