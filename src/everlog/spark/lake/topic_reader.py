"""Reads the rows of some topics from a file of the table by its topic file: only the pages that hold them."""

import logging
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from everlog.base import StorageError
from everlog.spark.lake.page_map import LeafPages, Numbers
from everlog.spark.lake.page_reader import Place, Runs, make_runs, read_rows
from everlog.spark.lake.table_layout import TOPIC_DIRECTORY, topic_path
from everlog.spark.lake.topic_file import TopicFile
from everlog.spark.schema import SCHEMA
from everlog.topics import Filter, SectionCache

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)

CACHE_BYTES = 32 << 20  # of sections of topic files; beyond it the least recently used are dropped
KEPT_FILES = 64  # topic files that are kept open; beyond it the least recently used is closed
THREADS = 8  # reads of a bucket at a time
NEAR_BYTES = 1 << 20  # in a bucket, places that are nearer are read in one go

_cache = SectionCache(CACHE_BYTES)
_opened: "OrderedDict[str, TopicFile]" = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Part:
    """Wanted rows of a row group: their runs, and for each row which of the wanted topics it has."""

    pages: dict[str, list[LeafPages]]
    runs: Runs
    topics: Numbers


class TopicRows:
    """The rows of a data file whose topic matches some filters."""

    def __init__(self, index: TopicFile, filters: Sequence[Filter]) -> None:
        self._index = index
        self._wanted = index.match(filters)
        self.rows = 0
        self._parts: list[_Part] = []
        self._names: list[str] = []
        if self._wanted:
            self._plan()

    @property
    def everything(self) -> bool:
        """Whether all rows of the file are wanted."""
        return bool(self.rows == self._index.rows)

    def _plan(self) -> None:
        """Find the pages, so that a damaged topic file is noticed before a row is read."""
        starts, stops = self._index.rows_of(self._wanted)
        self.rows = int((stops - starts).sum())
        self._names = self._index.names(self._wanted)
        edges = self._index.group_rows
        for number in range(int(np.searchsorted(edges, starts[0], "right")) - 1, len(edges) - 1):
            low, high = edges[number], edges[number + 1]
            first, last = int(np.searchsorted(stops, low, "right")), int(np.searchsorted(starts, high, "left"))
            begins, ends = np.maximum(starts[first:last], low) - low, np.minimum(stops[first:last], high) - low
            topics = np.repeat(np.arange(first, last), ends - begins)
            if len(topics):
                filled = begins < ends
                self._parts.append(_Part(self._index.group(number), make_runs(begins[filled], ends[filled]), topics))

    def read(self, filesystem: fs.FileSystem, path: str, shard: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows with some columns, those of a row group at a time, in the order of the file."""
        if not self._parts:
            return
        names = pa.array(self._names, pa.string())
        levels = pc.split_pattern(names, "/").cast(SCHEMA.field("levels").type) if "levels" in columns else None
        known = self._index.columns
        stored = [name for name in columns if name in known and name not in _MADE | self._index.nulls]
        with filesystem.open_input_file(path) as source:
            if source.size() != self._index.data_bytes:
                raise StorageError(
                    f"{path} has {source.size()} bytes, and {self._index.data_bytes} by its topic file",
                    hint=f"restore it, or remove the directory {TOPIC_DIRECTORY} if the table was changed on purpose",
                )
            is_local = isinstance(filesystem, fs.LocalFileSystem)
            for part in self._parts:
                pages = {name: part.pages[name] for name in stored}
                rows = read_rows(pages, part.runs, lambda places: _fetch(source, places, is_local))
                made = [_made(name, rows, part, shard, names, levels) for name in columns]
                yield pa.table(made, schema=pa.schema([SCHEMA.field(name) for name in columns]))


_MADE = frozenset(("shard", "topic", "levels"))


def _made(name: str, rows: pa.Table, part: _Part, shard: int, names: pa.Array, levels: pa.Array | None) -> pa.Array:
    """Return a column: as it is stored, or made from what the topic file says."""
    kind = SCHEMA.field(name).type
    if name == "shard":
        return pa.repeat(pa.scalar(shard, kind), len(part.topics))
    if name == "topic":
        return names.take(pa.array(part.topics))
    if name == "levels" and levels is not None:
        return levels.take(pa.array(part.topics))
    if name in rows.column_names:
        column = rows[name]
        return column if column.type == kind else column.cast(kind)
    return pa.nulls(len(part.topics), kind)


def topic_rows(filesystem: fs.FileSystem, root: str, path: str, filters: Sequence[Filter]) -> TopicRows | None:
    """Return which rows of a data file have wanted topics, or None where no topic file says so."""
    return _asked(filesystem, root, path, lambda index: TopicRows(index, filters))


def count_rows(filesystem: fs.FileSystem, root: str, path: str, filters: Sequence[Filter]) -> int | None:
    """Return how many rows of a data file have wanted topics, or None where no topic file says so."""
    return _asked(filesystem, root, path, lambda index: index.count(filters))


def _asked(filesystem: fs.FileSystem, root: str, path: str, question: Callable[[TopicFile], Answer]) -> Answer | None:
    try:
        index = _open(filesystem, f"{root}/{topic_path(path)}")
        return None if index is None else question(index)
    except (StorageError, OSError) as error:
        log.warning("%s is read by its statistics: %s", path, error)
        return None


def _open(filesystem: fs.FileSystem, where: str) -> TopicFile | None:
    """Return a topic file, or None if there is none. A name is used once, so an open one is never out of date."""
    with _lock:
        held = _opened.get(where)
        if held is not None:
            _opened.move_to_end(where)
            return held
    try:
        source = filesystem.open_input_file(where)
    except FileNotFoundError:
        return None
    if not isinstance(filesystem, fs.LocalFileSystem):  # a bucket answers slowly
        with source:
            source = pa.BufferReader(source.read())
    found = TopicFile(source, where, _cache)
    with _lock:
        _opened[where] = found
        if len(_opened) > KEPT_FILES:
            _opened.popitem(last=False)[1].drop_cache()
    return found


def _fetch(source: pa.NativeFile, places: list[Place], is_local: bool) -> list[bytes]:
    """Read places of a file; those of a bucket several at a time, and near ones together."""
    if is_local:
        return [source.read_at(length, position) for position, length in places]
    spans: list[list[int]] = []
    for position, length in sorted(places):
        if spans and position - spans[-1][1] <= NEAR_BYTES:
            spans[-1][1] = max(spans[-1][1], position + length)
        else:
            spans.append([position, position + length])
    with ThreadPoolExecutor(THREADS) as pool:
        held = list(pool.map(lambda span: source.read_at(span[1] - span[0], span[0]), spans))
    begins = [span[0] for span in spans]
    found = []
    for position, length in places:
        number = bisect_right(begins, position) - 1
        at = position - begins[number]
        found.append(held[number][at : at + length])
    return found
