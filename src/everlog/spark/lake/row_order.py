"""The order of rows in a file: by topic, in the order of the history's structure, then by offset.

The structure is what `everlog spark structure` left in the data directory; without it topics are in the order of their
bytes. Rows of a topic lie together either way, so a column of topics costs almost nothing and a page has few of them.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everlog.spark.jobs.structure_file import FILE_NAME, Structure, read_structure

_ROW_BITS = 32


class Clustering:
    """Ranks topics, for all the files that a task writes."""

    def __init__(self, structure: Structure | None = None) -> None:
        self._structure = structure
        self._keys: dict[str, tuple[int, tuple[str, ...]]] = {}

    @classmethod
    def of_store(cls, data: str) -> "Clustering":
        """Return the order by the structure in a data directory, if it has one."""
        return cls(None if "://" in data else read_structure(Path(data) / FILE_NAME))

    def ranks(self, names: pa.Array) -> npt.NDArray[np.uint32]:
        """Return the rank of each topic among these."""
        order = pc.sort_indices(names) if self._structure is None else self._by_structure(names.to_pylist())
        ranks = np.empty(len(names), np.uint32)
        ranks[np.asarray(order)] = np.arange(len(names), dtype=np.uint32)
        return ranks

    def _by_structure(self, names: list[str]) -> list[int]:
        assert self._structure is not None
        for name in names:
            if name not in self._keys:
                self._keys[name] = self._structure.cluster_key(name)
        return sorted(range(len(names)), key=lambda n: (self._keys[names[n]], names[n]))


def order_of(
    topics: npt.NDArray[np.int32], ranks: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return the row numbers by topic rank, in their order within a topic, and the ranks."""
    keys = ranks[topics].astype(np.uint64)
    keys <<= np.uint64(_ROW_BITS)
    keys |= np.arange(len(topics), dtype=np.uint64)
    keys.sort()  # all differ, which sorts faster than a stable sort of the ranks
    placed = (keys >> np.uint64(_ROW_BITS)).astype(np.int32)
    keys &= np.uint64((1 << _ROW_BITS) - 1)
    return keys.astype(np.int64), placed
