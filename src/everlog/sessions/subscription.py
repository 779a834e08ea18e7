"""A session's subscriptions: one by one as the session holds them, and merged where several match a message."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from everlog.sessions.session import Session


class Subscribed(Struct, frozen=True):
    """A subscription as the session holds it; `since` is the offset in each shard that it begins at."""

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0
    since: tuple[int, ...] = ()
    position: bool = False  # its messages carry their position and time


@dataclass(eq=False, slots=True)
class MergedSubscription:
    """How messages of some topics go to one session: all of its subscriptions that match them, as one.

    With `no_local` what the session published itself goes by `own`, or nowhere. `group` is the name and pattern of the
    shared group that chose the session, if one did. `since` is the offset in each shard that it begins at, if not from
    the start; where the subscriptions begin at different places they are `parts`, and below `until` only some count.
    """

    session: "Session"
    qos: int
    identifiers: bytes = b""
    retain_as_published: bool = False
    no_local: bool = False
    since: tuple[int, ...] = ()
    position: bool = False  # messages carry their position and time
    until: tuple[int, ...] = ()
    parts: tuple[Subscribed, ...] = ()
    own: "MergedSubscription | None" = None
    group: tuple[str, str] | None = None
    only: Subscribed | None = None  # the subscription that it is, if it was made of one


def begin_later(one: Subscribed, here: dict[int, int], shards: int) -> Subscribed | None:
    """Return a subscription that begins in some shards where its session is, or later; None if it does already."""
    since = tuple(max(at, here.get(shard, at)) for shard, at in enumerate(one.since or (0,) * shards))
    return None if since == one.since else replace(one, since=since)
