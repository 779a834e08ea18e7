"""A session's subscriptions that match a message, merged into one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from everlog.sessions.subscription import Subscribed

if TYPE_CHECKING:
    from everlog.sessions.session import Session


@dataclass(eq=False)
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
    tells: int = 0  # what messages carry besides: TELL_PLACE, TELL_PUBLISHER
    until: tuple[int, ...] = ()
    parts: tuple[Subscribed, ...] = ()
    own: "MergedSubscription | None" = None
    group: tuple[str, str] | None = None
    only: Subscribed | None = None  # the subscription that it is, if it was made of one
