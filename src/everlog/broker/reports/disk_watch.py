"""Watches the free space of the disk: below the reserve nothing more is kept, and the operator is told once."""

import logging
from logging import ERROR, WARNING

from everlog.broker.delivery import Router
from everlog.broker.events import event
from everlog.store import FreeSpace

NO_SPACE = "no more messages are kept: free some space, or keep less (log.retention_bytes, log.retention_age)"
_log = logging.getLogger("everlog.broker")


def watch_space(space: FreeSpace, router: Router) -> None:
    """Look at the free space, and tell the router and the operator if the disk has become full, or is no longer."""
    if not space.look():
        return
    router.set_full(space.is_low)
    sizes = {"free": space.free_bytes, "reserve": space.reserve_bytes, "path": space.directory}
    if space.is_low:
        event(_log, "disk_full", ERROR, **sizes, reason=NO_SPACE)
    else:
        event(_log, "disk_has_room", WARNING, **sizes, reason="messages are kept again")
