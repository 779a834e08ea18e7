"""A state shard in a process of its own, with real files and threads: appends to some streams as fast as it can.

`python -m tests.crash.shard_process DIRECTORY [BUCKET]`. Each line that it prints says that a value is committed:
stream, seq, value. It applies, syncs and trims all the time, and with a bucket packs, evicts and fetches too.
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

from everlog.commitlog import LogSettings
from everlog.streams import Answer, Call, LocalJournal, Message, Reply, Set, ShardSettings, StateShard, Tier, Written
from everlog.tiering import DirectoryBucket

SETTINGS = ShardSettings(
    apply_rows=8, most_open=3, most_states=4, keep_records=100, sync_us=1, sync_records=1, apply_us=10_000, upload_us=1,
    most_files=4, history_us=0,
)  # fmt: skip
STREAMS = 10
SMALL = LogSettings(segment_bytes=20_000, retention_bytes=0, merge_below=0)  # so that trims remove something


class Clock:
    """The wall clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    due_us = now_us


answered = 0


def told(stream: str, value: bytes, answer: Answer) -> None:
    """Print that a value is committed."""
    global answered
    answered += 1
    assert isinstance(answer, Reply), answer
    assert isinstance(answer.result, Written)
    print(stream, answer.result.seq, value.decode())


def open_tier(journal: LocalJournal, directory: str, bucket: str) -> Tier:
    """Open the bucket's part of the shard."""
    uploads, fetches = ThreadPoolExecutor(1), ThreadPoolExecutor(2)
    tier = Tier.open(
        DirectoryBucket(bucket),
        "shard-0",
        journal,
        lambda work: uploads.submit(work) and None,
        lambda work: fetches.submit(work) and None,
        is_copied=True,
        archive_us=1_000,
    )
    tier.prepare(directory)
    return tier


def main(directory: str, bucket: str = "") -> None:
    """Append until the process is killed."""
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    workers = ThreadPoolExecutor(2)
    journal = LocalJournal.open(f"{directory}/journal", settings=SMALL)
    shard = StateShard(
        journal,
        directory,
        Clock(),
        post=posted.put,
        run=lambda work: workers.submit(work) and None,
        settings=SETTINGS,
        tier=open_tier(journal, directory, bucket) if bucket else None,
    )
    number = journal.end
    for turn in range(1_000_000):
        for _ in range(20):
            number += 1
            stream, value = f"s/{number % STREAMS}", b"%d" % number
            shard.handle(Call(Set(stream, Message(value), message_id=f"id{number}")), partial(told, stream, value))
        shard.turn()
        while not posted.empty() or answered < 20 * (turn + 1):
            posted.get()()
        if turn % 5 == 0:
            shard.tick()
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
