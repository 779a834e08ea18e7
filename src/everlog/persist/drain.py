"""Drains a server from outside, by what all of them share."""

import time
from collections.abc import Callable

from everlog.base import UsageError
from everlog.persist.shared_storage import open_storage, shard_of_thing

_LOOK_S = 0.2


def drain_server(place: str, name: str, timeout_s: float, say: Callable[[list[int], bool], None]) -> bool:
    """Have a server hand over its shards, and tell what it still owns whenever that changes; False if time runs out."""
    storage = open_storage(place, make=False)
    try:
        ownership = storage.ownership
        members = {member.name: member.incarnation for member in ownership.read().members.values()}
        if name not in members:
            raise UsageError(f"there is no server {name!r}", hint=f"there are: {', '.join(sorted(members)) or 'none'}")
        incarnation = members[name]
        ownership.drain(incarnation)
        told: list[int] | None = None
        deadline = time.monotonic() + timeout_s
        while True:
            board = ownership.read()
            owned = sorted(
                shard for thing in board.owned_by(incarnation) if (shard := shard_of_thing(thing)) is not None
            )
            is_done = incarnation not in board.members
            if is_done or owned != told:
                say(owned, is_done)
                told = owned
            if is_done or time.monotonic() > deadline:
                return is_done
            time.sleep(_LOOK_S)
    finally:
        storage.close()
