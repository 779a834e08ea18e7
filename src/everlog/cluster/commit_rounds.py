"""How one thread commits what all shards of a broker have gathered, and writes their copies to disk behind.

What several owned shards have to commit when it looks goes in one transaction, so a commit is as large as what came
meanwhile, whatever the shards. A shard that can't go on (its tail is full, it is being taken over) holds up no other.
"""

from collections import deque
from collections.abc import Callable
from time import monotonic

from everlog.base import EverlogError
from everlog.cluster.rows import TailRow
from everlog.cluster.shard_target import ShardTarget
from everlog.cluster.tail_commits import BUSY_S, TRANSACTION_BYTES, Part, TailCommits
from everlog.commitlog import ShardLog

WRITE_S = 0.25  # what is shown of a copy is written after this time


class _Step:
    """A shard's step that is under way: what it has still to commit before it goes on."""

    def __init__(self, log: ShardLog, target: ShardTarget) -> None:
        self.part: Part | None = None  # was in a transaction, and is busy
        self.is_over = False
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

    def look(self) -> None:
        """Go on if the transaction has decided about the part in it."""
        part = self.part
        if part is None:
            return
        if part.refusal is not None:
            self._refuse(part.refusal)
        elif part.is_committed:
            self.part = None
            self._go_on()

    def _refuse(self, why: EverlogError) -> None:
        """Commit nothing more of the step."""
        self.part = None
        self._rows.clear()
        self._go_on(why)

    def _go_on(self, refusal: EverlogError | None = None) -> None:
        """Let the log show what is committed, until there are rows to commit again."""
        try:
            while not self._rows:
                self._rows = self._target.rows(self._steps.send(refusal))
        except StopIteration:
            self.is_over = True


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
        """Try to commit what is there by one transaction; return whether there may be more to do at once."""
        for log, wants_step, target_of in self._shards:
            if wants_step() and log not in self._steps:
                self._begin(log, target_of())
        parts: list[Part] = []
        room = TRANSACTION_BYTES
        for log, step in list(self._steps.items()):
            part = step.next_part(room) if room > 0 else None
            if part is not None:
                parts.append(part)
                room -= part.size
                self._steps[log] = self._steps.pop(log)  # whoever had no room is the first the next time
        if parts:
            self._commits.commit(parts)
        for log, step in list(self._steps.items()):
            step.look()
            if step.is_over:
                del self._steps[log]
        if monotonic() >= self._write_at:
            self._write_behind()
        return any(part.is_committed or part.is_in_doubt or part.refusal is not None for part in parts)

    def rest_s(self) -> float:
        """Return after how many seconds the next round is due though nobody asks for it."""
        return BUSY_S if any(step.part is not None for step in self._steps.values()) else WRITE_S

    def gave_up(self, error: Exception) -> None:
        """Let no shard go on: the thread has met an error that it was not made for."""
        for log, _, _ in self._shards:
            log.gave_up(error)

    def _begin(self, log: ShardLog, target: ShardTarget | None) -> None:
        if target is None:
            log.commit_step()
            return
        step = _Step(log, target)
        if not step.is_over:
            self._steps[log] = step

    def _write_behind(self) -> None:
        self._write_at = monotonic() + WRITE_S
        for log, _, _ in self._shards:
            if log.unwritten_bytes and log not in self._steps:
                log.write_behind()
