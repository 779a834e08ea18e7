"""Whether a broker of a cluster can serve clients: it beats, the database answers, each shard has an owner."""

import time
from collections.abc import Callable

from everlog.cluster import BrokerKeeper
from everlog.ownership import NOBODY, Board

GRACE = 2.0  # patiences in which shards of a broker that is gone are taken by others: all is well until then


class ClusterHealth:
    """The checks of one incarnation; `look` is called with each board."""

    def __init__(
        self, keeper: BrokerKeeper, shards: int, patience_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keeper = keeper
        self._shards = shards
        self._patience_s = patience_s
        self._clock = clock
        self._unowned: dict[int, float] = {}  # shards without an owner, since when

    def look(self, board: Board) -> None:
        """Note which shards have no owner."""
        now = self._clock()
        unowned = [shard for shard in range(self._shards) if self._keeper.owner_of(shard) == NOBODY]
        self._unowned = {shard: self._unowned.get(shard, now) for shard in unowned}

    def beats(self) -> str | None:
        """Return why this broker can't be trusted to be alive for the others, or None."""
        age_s = self._clock() - self._keeper.beaten_at
        if age_s <= self._patience_s:
            return None
        return f"no beat was stored for {age_s:.0f} s: {self._keeper.trouble or 'commits wait for the database'}"

    def database_answers(self) -> str | None:
        """Return why the database could not be asked at the last try, or None."""
        trouble = self._keeper.trouble
        return f"the cluster's database: {trouble}" if trouble else None

    def shards_have_owners(self) -> str | None:
        """Return which shards have had no owner for too long, or None."""
        since, grace_s = self._clock(), GRACE * self._patience_s
        lost = [shard for shard, began in self._unowned.items() if since - began > grace_s]
        return f"no broker owns shard {', '.join(map(str, lost))}" if lost else None

    def is_draining(self) -> str | None:
        """Return that this broker is drained, if it is."""
        return "this broker is drained" if self._keeper.is_draining else None

    @property
    def checks(self) -> list[Callable[[], str | None]]:
        """All of these."""
        return [self.beats, self.database_answers, self.shards_have_owners, self.is_draining]
