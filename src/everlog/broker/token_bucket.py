"""A token bucket: so many a second, with a second's worth at once."""


class TokenBucket:
    """A limit of `per_second` on average; time is an argument."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._tokens = max(per_second, 1.0)
        self._last = 0.0

    def take(self, now: float) -> bool:
        """Take a token if there is one."""
        self._tokens = min(max(self.per_second, 1.0), self._tokens + (now - self._last) * self.per_second)
        self._last = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
