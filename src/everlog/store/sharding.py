"""Which shard a topic belongs to, and the routes of messages that follow."""

import hashlib

from everlog.base import TopicTable, UsageError

MAX_SHARDS = 254  # a route is a byte, and 255 stands for not kept


def shard_of(topic: bytes, shards: int) -> int:
    """Return the shard of a topic: a hash of the name alone, so that it is always the same everywhere."""
    if shards == 1:
        return 0
    return int.from_bytes(hashlib.blake2b(topic, digest_size=8).digest(), "little") % shards


class Routes:
    """The shards of a table's topics: a byte for each topic id and QoS, at 4 * id + QoS. Owned by one thread."""

    def __init__(self, shards: int) -> None:
        if not 1 <= shards <= MAX_SHARDS:
            raise UsageError(f"a store has 1 to {MAX_SHARDS} shards, not {shards}")
        self._shards = shards
        self._table: TopicTable | None = None
        self._generation = -1
        self._routes = bytearray()

    def of(self, table: TopicTable) -> bytearray:
        """Return the routes of all topics that the table has now."""
        if self._table is not table or self._generation != table.generation:
            self._table, self._generation, self._routes = table, table.generation, bytearray()
        known = len(self._routes) // 4
        if known < len(table):
            for name in table.all_names(known):
                self._routes += bytes((shard_of(name, self._shards),)) * 3 + b"\0"
        return self._routes
