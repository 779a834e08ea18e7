"""How far a stream has read: an offset of each shard, and their store. Spark keeps it in the checkpoint."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from everlog.base import StorageError, UsageError

VERSION = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """The first offset of each shard that is not read yet, by rising shard."""

    store: str
    shards: tuple[tuple[int, int], ...]
    topics: tuple[str, ...] | None = None  # the filters that it was made with; None where it is not known

    @classmethod
    def of(cls, store: str, offsets: Mapping[int, int], topics: Iterable[str] | None = None) -> "Progress":
        """Return the progress at these offsets."""
        return cls(store, tuple(sorted(offsets.items())), None if topics is None else tuple(sorted(topics)))

    @property
    def offsets(self) -> dict[int, int]:
        """The offsets by shard."""
        return dict(self.shards)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that Spark keeps; equal progress gives equal text, which is what Spark compares."""
        shards = {str(shard): offset for shard, offset in self.shards}
        kept: dict[str, Any] = {"version": VERSION, "store": self.store, "shards": shards}
        return kept if self.topics is None else kept | {"topics": list(self.topics)}


def read_progress(kept: Any, store: str, shards: Iterable[int]) -> Progress:
    """Return the progress in a checkpoint, if it is of this store and of these shards."""
    try:
        version, of, offsets = kept["version"], kept["store"], kept["shards"]
        found = Progress.of(str(of), {int(shard): int(offset) for shard, offset in offsets.items()}, kept.get("topics"))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise StorageError(f"the checkpoint has {kept!r}, which is not the progress of a stream of everlog") from None
    if version != VERSION:
        raise StorageError(f"the checkpoint's version {version} is not known", hint="go on with a newer Everlog")
    if found.store != store:
        raise UsageError(
            f"the checkpoint is of the store {found.store}, and the data directory holds {store}",
            hint="give the path of the store that the stream began with, or another checkpointLocation",
        )
    wanted = sorted(shards)
    if [shard for shard, _ in found.shards] != wanted:
        raise UsageError(
            f"the checkpoint is of shards {[shard for shard, _ in found.shards]}, and {wanted} are asked for",
            hint="set the option shards as before, or give another checkpointLocation",
        )
    return found
