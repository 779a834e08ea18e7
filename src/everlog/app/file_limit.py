"""How many files and sockets the system lets the broker have open, and how many of them are not for clients."""

import resource
from dataclasses import dataclass

_RESERVE = 256  # for HTTP, files of the log, clients that are told why they are refused
_MOST = 1 << 20  # that are asked for where the system sets no limit


@dataclass(frozen=True, slots=True)
class FileLimit:
    """The system's limit on open files."""

    files: int

    @property
    def reserve(self) -> int:
        """How many are kept for the broker itself, whatever clients do."""
        return min(_RESERVE, self.files // 4)

    @property
    def for_clients(self) -> int:
        """The first file number that is too high for a client: numbers are given from the lowest on."""
        return self.files - self.reserve

    def warning(self, connections: int) -> str | None:
        """Return what to say at start if `limits.connections` can't be reached."""
        if connections <= self.for_clients:
            return None
        return (
            f"limits.connections={connections}: the system allows {self.files} open files, so clients beyond about "
            f"{self.for_clients} are refused; raise it: ulimit -Hn, or LimitNOFILE= of systemd"
        )


def raise_file_limit() -> FileLimit:
    """Take as many open files as the system allows without more rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # macOS takes less than it says
            return FileLimit(soft)
        soft = wanted
    return FileLimit(_MOST if soft == resource.RLIM_INFINITY else soft)
