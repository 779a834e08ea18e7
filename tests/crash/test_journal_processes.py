"""Owners of a journal in a shared directory, as real processes that are stopped, replaced, continued and killed."""

import signal
import subprocess
import sys
from pathlib import Path

from everlog.tiering import DirectoryBucket, JournalReader

OWNER = """
import sys, threading
from everlog.base import EverlogError
from everlog.tiering import DirectoryBucket, ObjectJournal

journal = ObjectJournal(DirectoryBucket(sys.argv[1]), "shard", int(sys.argv[2]), group_s=0)
number = 0
while True:
    told = threading.Event()
    answers = []
    def answer(what):
        answers.append(what)
        told.set()
    try:
        journal.append([("stream", b"%d %d" % (journal.epoch, number))])
    except EverlogError as error:
        answer(error)
    else:
        journal.commit(answer, answer)
    told.wait()
    if isinstance(answers[0], EverlogError):
        print(type(answers[0]).__name__, flush=True)
        break
    print(f"{answers[0] - 1} {journal.epoch} {number}", flush=True)
    number += 1
"""


class Owner:
    """A process that owns the journal at an epoch, and what it acknowledged: (position, effect)."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(folder), str(epoch)], stdout=subprocess.PIPE, text=True
        )
        self.acked: dict[int, str] = {}

    def read(self) -> str:
        """Read a line, and note what it acknowledges."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        position, _, effect = line.partition(" ")
        if effect:
            self.acked[int(position)] = effect
        return line

    def read_all(self) -> str:
        """Read until the process ends, and return its last line."""
        last = ""
        while line := self.read():
            last = line
        self.process.communicate()
        return last


def test_an_owner_that_was_stopped_and_replaced_acknowledges_nothing_that_is_lost(tmp_path: Path) -> None:
    owners = [Owner(tmp_path, 1)]
    for epoch in range(2, 5):
        before = owners[-1]
        for _ in range(20):
            before.read()
        before.process.send_signal(signal.SIGSTOP)
        owners.append(Owner(tmp_path, epoch))
        for _ in range(20):
            owners[-1].read()
        before.process.send_signal(signal.SIGCONT)
        assert before.read_all() == "Fenced"
    owners[-1].process.kill()
    owners[-1].read_all()
    reader = JournalReader(DirectoryBucket(tmp_path), "shard")
    reader.follow()
    found = {position: effect.decode() for position, _, effect in reader.read(0, reader.end)}
    assert list(found) == list(range(reader.end))
    assert len(set(found.values())) == len(found)
    for owner in owners:
        assert len(owner.acked) >= 20
        assert owner.acked.items() <= found.items()
