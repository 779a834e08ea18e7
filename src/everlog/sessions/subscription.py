"""A session's subscriptions, one by one as the session holds them."""

from msgspec import Struct
from msgspec.structs import replace


class Subscribed(Struct, frozen=True, gc=False):
    """A subscription as the session holds it; `since` is the offset in each shard that it begins at."""

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0
    since: tuple[int, ...] = ()
    tells: int = 0  # what its messages carry besides: TELL_PLACE, TELL_PUBLISHER


def begin_later(one: Subscribed, here: dict[int, int], shards: int) -> Subscribed | None:
    """Return a subscription that begins in some shards where its session is, or later; None if it does already."""
    since = tuple(max(at, here.get(shard, at)) for shard, at in enumerate(one.since or (0,) * shards))
    return None if since == one.since else replace(one, since=since)
