"""What a persist server needs of others: somebody who opens the state shards that it owns."""

from collections.abc import Callable
from typing import Protocol

from everlog.streams import Shard

Post = Callable[[Callable[[], None]], None]  # has something called on the server's thread, from any other


class ShardOpener(Protocol):
    """Opens state shards; that may take a while, so it is done on a thread of its own."""

    @property
    def shards(self) -> int: ...  # how many there are, owned here or not

    def open(self, shard: int, post: Post) -> Shard: ...
