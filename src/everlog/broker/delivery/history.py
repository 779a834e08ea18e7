"""What can be replayed: the log and, if there is one, the cold tier behind it.

`begins` is quick and looks at the log alone; where that is not enough, `begins_in_cold` asks the cold tier, in a thread
because that blocks.
"""

from collections.abc import Callable

from everlog.broker.delivery.ports import Log
from everlog.store import Begin, BeginKind, ColdStore, Positions, locate


class History:
    """The beginnings of replays in the log and the cold tier."""

    def __init__(self, log: Log, ends: Callable[[], Positions], cold: ColdStore | None = None) -> None:
        self._log = log
        self._ends = ends
        self.cold = cold

    def starts(self) -> Positions:
        """Return where each shard of the log begins."""
        return tuple(shard.start for shard in self._log.shards)

    def begins(self, begin: Begin) -> Positions:
        """Return where a replay begins by the log alone; below `starts` if it asks for what the log has lost."""
        return locate(begin, self.starts(), self._ends(), self._log.positions_at)

    def needs_cold(self, begin: Begin) -> bool:
        """Return whether only the cold tier can tell where it begins, since the log has lost its first records."""
        if self.cold is None or begin.kind is BeginKind.LATEST:
            return False
        return any(found <= start and start for found, start in zip(self.begins(begin), self.starts(), strict=True))

    def begins_in_cold(self, begin: Begin) -> tuple[Positions, Positions]:
        """Return where it begins with the cold tier, and the first offset that exists of each shard; blocks."""
        cold = self.cold
        assert cold is not None
        cold.refresh()
        log_starts = self.starts()
        starts = tuple(
            min(start, cold.start(shard)) if cold.start(shard) < cold.end(shard) else start
            for shard, start in enumerate(log_starts)
        )

        def at(time_us: int) -> Positions:
            return tuple(
                min(found, cold.position_at(shard, time_us)) if found <= start else found
                for shard, (found, start) in enumerate(zip(self._log.positions_at(time_us), log_starts, strict=True))
            )

        return locate(begin, starts, self._ends(), at), starts
