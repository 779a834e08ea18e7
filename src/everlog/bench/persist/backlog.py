"""How much waits for the files of its streams while a load runs, as servers tell it once a second."""

import asyncio
import threading
from typing import NamedTuple

from everlog.client import connect

_EVERY_S = 1.0


class Waiting(NamedTuple):
    """What all servers together had waiting at one moment."""

    rows: int
    bytes: int


class BacklogWatch:
    """Asks the servers on a bus, on a thread of its own, for the length of a block."""

    def __init__(self, url: str) -> None:
        self.seen: list[Waiting] = []
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask()))

    def __enter__(self) -> "BacklogWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    async def _ask(self) -> None:
        async with connect(self._url) as client:
            while not self._over.is_set():
                found = await client.servers(_EVERY_S)
                if found:
                    rows, size = sum(one.unfiled_rows for one in found), sum(one.unfiled_bytes for one in found)
                    self.seen.append(Waiting(rows, size))

    def figures(self) -> dict[str, float]:
        """Return the most that waited, and by how much its peak grew from the third quarter of the time to the last."""
        if not self.seen:
            return {}
        peaks = [max(one.rows for one in part) for part in _quarters(self.seen)]
        return {
            "unfiled_rows": max(one.rows for one in self.seen),
            "unfiled_mb": round(max(one.bytes for one in self.seen) / 1e6, 1),
            "growth": round(peaks[3] / max(1, peaks[2]), 3),
        }


def _quarters(seen: list[Waiting]) -> list[list[Waiting]]:
    size = max(1, len(seen) // 4)
    return [seen[max(0, end - size) : end] for end in (size, 2 * size, 3 * size, len(seen))]
