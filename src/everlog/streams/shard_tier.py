"""A shard's part in the bucket, as the shard uses it: files that come and go, and rounds that pack what changed."""

from typing import TYPE_CHECKING

from everlog.streams.away_files import Answers, AwayFiles, Handle
from everlog.streams.pack_index import PackIndex
from everlog.streams.pack_rounds import PackRounds
from everlog.streams.requests import Call
from everlog.streams.tier import Tier

if TYPE_CHECKING:
    from everlog.streams.state_shard import StateShard


class ShardTier:
    """Made before the shard replays its journal, and closed before its views are."""

    def __init__(self, shard: "StateShard", tier: Tier) -> None:
        views = shard.views
        self._tier = tier
        self.index = PackIndex(views.catalogue)
        self.files = AwayFiles(shard, tier, self.index)
        self.rounds = PackRounds(shard, tier, self.index)
        views.away_files, views.files.touched = self.files, {}
        if shard.settings.most_files:  # a file that is open stays
            views.files.most_open = min(views.files.most_open, max(1, shard.settings.most_files // 2))

    def holds(self, handle: Handle, call: Call, answer: Answers) -> bool:
        """Take a request that has to wait for its stream's file; say whether it was taken."""
        return self.files.holds(handle, call, answer)

    def tick(self, now_us: int) -> None:
        """Do what time demands; the catalogue's rows are flushed."""
        self.rounds.tick(now_us)
        self.files.tick(now_us)

    def give_up(self) -> None:
        """Tell everybody who waits for a file that the shard ended."""
        self.files.close()

    def close(self) -> None:
        """Wait for the round that is under way, and let go of the bucket."""
        self.files.close()
        self.rounds.close()
        self._tier.close()
