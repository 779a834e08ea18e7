"""Which streams somebody follows: feed events of others are not made."""

LEASE_S = 90.0  # a follower asks more often than this


class Followers:
    """Names with the time until which they are followed."""

    def __init__(self) -> None:
        self.until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self.until)

    def add(self, name: str, now: float) -> None:
        """Note that somebody follows a stream for a while."""
        self.until[name] = now + LEASE_S

    def sweep(self, now: float) -> None:
        """Forget those that nobody asked for again."""
        for name in [name for name, until in self.until.items() if until < now]:
            del self.until[name]
