"""How one thread commits what all shards of a broker have gathered, and writes their copies to disk behind.

What several owned shards have to commit when it looks goes in one transaction, so a commit is as large as what came
meanwhile, whatever the shards. A shard that can't go on (its tail is full, it is being taken over) holds up no other.
"""

from collections import deque
from collections.abc import Callable
from time import monotonic

import cython

from everlog.base import EverlogError
from everlog.cluster.rows import TailRow
from everlog.cluster.tail_commits import BUSY_S, TRANSACTION_BYTES
from everlog.commitlog import ShardLog

if not cython.compiled:
    from everlog.cluster.shard_target import ShardTarget
    from everlog.cluster.tail_commits import Part, TailCommits

WRITE_S = 0.25  # what is shown of a copy is written after this time


class _Step:
    """A shard's step that is under way: what it has still to commit before it goes on."""

    def __init__(self, log: ShardLog, target: ShardTarget) -> None:
        self.part: Part | None = None  # was in a transaction, and is busy
        self.is_over = False
        self.wants_step = log.wants_step
        self._steps = log.steps()
        self._rows: deque[TailRow] = deque()
        self._target = target
        try:
            self._rows = target.rows(next(self._steps))
        except StopIteration:
            self.is_over = True
        else:
            self._go_on()

    def next_part(self, room: int) -> Part | None:
        """Return what goes into the next transaction; None if there is nothing, or no room in the tail."""
        if self._target.is_stopped:
            self._refuse(self._target.closed())
        elif self.part is None and self._rows:
            self.part = self._target.part(self._rows, room)
        return self.part

    def look(self) -> int:
        """Go on if the transaction has decided about the part in it."""
        part = self.part
        if part is None:
            return 0
        if part.refusal is not None:
            self._refuse(part.refusal)
        elif part.is_committed:
            self.part = None
            self._go_on()
        return 0

    def _refuse(self, why: EverlogError) -> int:
        """Commit nothing more of the step."""
        self.part = None
        self._rows.clear()
        return self._go_on(why)

    def _go_on(self, refusal: EverlogError | None = None) -> int:
        """Let the log show what is committed, until there are rows to commit again."""
        try:
            while not self._rows:
                self._rows = self._target.rows(self._steps.send(refusal))
        except StopIteration:
            self.is_over = True
        return 0


class CommitRounds:
    """What the committing thread of a broker's shards does, a round each time it is woken."""

    def __init__(self, commits: TailCommits) -> None:
        self._commits = commits
        self._shards: list[tuple[ShardLog, Callable[[], bool], Callable[[], ShardTarget | None]]] = []
        self._steps: dict[ShardLog, _Step] = {}
        self._write_at = 0.0

    def add(self, log: ShardLog, target: Callable[[], ShardTarget | None]) -> None:
        """Commit what a log has, at the target that it has then, if any."""
        self._shards.append((log, log.wants_step, target))

    def step(self) -> bool:
        """Try to commit what is there by one transaction; return whether there is more to do at once."""
        steps = self._steps
        for log, wants_step, target_of in self._shards:
            if wants_step() and log not in steps:
                self._begin(log, target_of())
        parts: list[Part] = []
        room = TRANSACTION_BYTES
        for log, step in list(steps.items()):
            part = step.next_part(room) if room > 0 else None
            if part is not None:
                parts.append(part)
                room -= part.size
                if len(steps) > 1:
                    steps[log] = steps.pop(log)  # whoever had no room is the first the next time
        if parts:
            self._commits.commit(parts)
        again = False
        for log, step in list(steps.items()):
            step.look()
            if step.is_over:
                del steps[log]
                again = again or step.wants_step()  # what was asked for while it waited woke nobody
        if monotonic() >= self._write_at:
            self._write_behind()
        return again or (bool(steps) and _has_decided(parts))

    def rest_s(self) -> float:
        """Return after how many seconds the next round is due though nobody asks for it."""
        for step in self._steps.values():
            if step.part is not None:
                return BUSY_S
        return WRITE_S

    def gave_up(self, error: Exception) -> None:
        """Let no shard go on: the thread has met an error that it was not made for."""
        for log, _, _ in self._shards:
            log.gave_up(error)

    def _begin(self, log: ShardLog, target: "ShardTarget | None") -> int:
        if target is None:
            log.commit_step()
            return 0
        step = _Step(log, target)
        if not step.is_over:
            self._steps[log] = step
        return 0

    def _write_behind(self) -> None:
        self._write_at = monotonic() + WRITE_S
        for log, _, _ in self._shards:
            if log.unwritten_bytes and log not in self._steps:
                log.write_behind()


def _has_decided(parts: list[Part]) -> bool:
    """Return whether a transaction said of any part what became of it, or left it in doubt."""
    for part in parts:  # noqa: SIM110
        if part.is_committed or part.is_in_doubt or part.refusal is not None:
            return True
    return False
