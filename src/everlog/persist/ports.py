"""What a persist server needs of others: somebody who opens the state shards that it owns."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from everlog.base import EverlogError
from everlog.streams import Shard

Post: TypeAlias = Callable[[Callable[[], None]], None]  # has something called on the server's thread, from any other
Failed: TypeAlias = Callable[[EverlogError], None]  # told, on any thread, that the shard can't go on
Begin: TypeAlias = Callable[[Post, Failed], Shard]


class ShardOpener(Protocol):
    """Opens state shards."""

    @property
    def shards(self) -> int: ...  # how many there are, owned here or not

    def open(self, shard: int) -> Begin:
        """Open the journal of a shard; what is returned makes the shard. Both may take long; any thread calls them."""
        ...
