"""What a persist server says of itself when it is greeted."""

from msgspec import Struct


class Welcome(Struct, frozen=True, kw_only=True):
    """A server, how many state shards there are, and which of them it owns."""

    server: str
    shards: int
    owned: list[int]
    protocol: int
    version: str
    address: str = ""
    opened: list[int] = []  # of those that it owns, the ones that were used
    requests: int = 0  # since it began
    under_way: int = 0
    followed: int = 0  # streams that somebody follows
    store: str = ""  # which storage it serves, if several servers share it
    epochs: dict[int, int] = {}  # of the shards that it owns, then
    unfiled_rows: int = 0  # records that are committed or about to be, and not yet in the files of their streams
    unfiled_bytes: int = 0
    is_draining: bool = False  # it gives away what it owns
    is_coordinator: bool = False  # it says which server each shard should be on
