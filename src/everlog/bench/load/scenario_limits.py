"""The limits of this process that a scenario needs raised."""

import resource

from everlog.base import UsageError

SPARE_FILES = 200  # file descriptors beside the connections


def allow_files(connections: int, *, at_most: bool = False) -> None:
    """Raise the limit of open files to what a run needs, or `at_most` to as many of them as are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = connections + SPARE_FILES
    if need > soft:
        if need > hard != resource.RLIM_INFINITY:
            if not at_most:
                hint = "ulimit -Hn"
                raise UsageError(f"{connections} connections need {need} open files, {hard} are allowed", hint=hint)
            need = hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
