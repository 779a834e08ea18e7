"""A writer in a process of its own: appends numbered messages as fast as it can, and says what was committed.

`python -m tests.crash.writing_process DIRECTORY ROUNDS`. Whatever is synced is noted in the file `synced` beside the
log before it is marked, so that a reader can be held to it.
"""

import mmap
import os
import struct
import sys
import time
from collections.abc import Sequence

from tests.shard_logs import columns_of

from everlog.base import TopicTable
from everlog.commitlog import LogSettings, RealDisk, ShardLog
from everlog.commitlog.ports import Block, Note
from everlog.commitlog.real_disk import RealFile

RUN = 50
SETTINGS = LogSettings(segment_bytes=200_000, retention_bytes=1_500_000, merge_below=200, tail_bytes=0)


def payload(offset: int) -> bytes:
    """What stands at an offset."""
    return b"%d " % offset + b"x" * (offset % 40)


class Witness:
    """The offset behind what is synced, shared with other processes."""

    def __init__(self, directory: str) -> None:
        with open(f"{directory}/synced", "a+b") as file:
            file.truncate(8)
            self._shared = mmap.mmap(file.fileno(), 8)

    @property
    def offset(self) -> int:
        return int(struct.unpack("<Q", self._shared[:8])[0])

    @offset.setter
    def offset(self, value: int) -> None:
        self._shared[:8] = struct.pack("<Q", value)


class WitnessedFile(RealFile):
    """Notes what is synced between the sync and the mark."""

    witness: Witness

    def commit_at(
        self, position: int, blocks: Sequence[Block], note: Note | None = None, *, padded: bool = False
    ) -> None:
        super().commit_at(position, blocks, padded=padded)
        if len(blocks) > 1 and blocks[-2][:4] == b"EVLF":
            base, _, count = struct.unpack_from("<QII", blocks[-2], 16)
            self.witness.offset = max(self.witness.offset, base + (count & 0x7FFFFFFF))
        if note is not None:
            note[0].write_at(0, [note[1]])


class WitnessedDisk(RealDisk):
    """A disk whose segments are witnessed."""

    def create(self, path: str) -> RealFile:
        return WitnessedFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def open(self, path: str, *, write: bool = False) -> RealFile:
        return WitnessedFile(path, os.O_RDWR if write else os.O_RDONLY)


def main(directory: str, rounds: int) -> None:
    """Write for so many rounds or until the process is killed."""
    WitnessedFile.witness = Witness(directory)
    log = ShardLog.open(WitnessedDisk(), f"{directory}/shard", SETTINGS)
    table = TopicTable()
    print(log.end, flush=True)
    for number in range(1, rounds + 1):
        first = log.end
        messages = [(b"t/%d" % (n % 97), payload(n)) for n in range(first, first + RUN)]
        log.append(columns_of(messages, table), 0, RUN, time.time_ns() // 1000, table)
        log.commit()
        if number % 4 == 0:
            log.wait_committed(log.end)
            print(log.committed, flush=True)
        if number % 200 == 0:
            log.run_retention(0)
    log.close()
    print(log.committed, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
