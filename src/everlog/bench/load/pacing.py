"""When publishers may send: at full speed, on a schedule, or held while too much is on its way.

A pacing raises the senders' limits and nothing else. At full speed the limits are set once; the window does the rest.
"""

from collections.abc import Sequence

from everlog.bench.load.figures import Tally
from everlog.bench.load.load_client import Client
from everlog.bench.load.sender import Sender

TICK_NS = 250_000  # messages of a schedule that fall into one tick go out together
FORGIVE_NS = 250_000_000  # QoS 0 messages that a broker dropped must not hold the publishers up for good
_ENDLESS = 1 << 60


class Pacing:
    """Full speed until `messages` are sent in all or `stop` is called."""

    scheduled = False

    def __init__(self, clients: Sequence[Client], tally: Tally, messages: int) -> None:
        self.clients = clients
        self.tally = tally
        self.senders: list[Sender] = [client.sender for client in clients if client.sender is not None]
        count = len(self.senders)
        self.quotas = [messages // count + (i < messages % count) if messages else _ENDLESS for i in range(count)]
        self.goal = messages or _ENDLESS
        self.stopped = False

    def begin(self, now_ns: int) -> None:
        """Start publishing."""
        for sender, quota in zip(self.senders, self.quotas, strict=True):
            sender.limit = quota

    def advance(self, now_ns: int) -> Sequence[Client]:
        """Raise the limits that time allows; return the clients that may send more."""
        return ()

    def next_ns(self, now_ns: int) -> int | None:
        """Return when `advance` has something to do again, or None if that is not a matter of time."""
        return None

    def stop(self) -> None:
        """Send no more than what has been sent already."""
        self.stopped = True
        for sender in self.senders:
            sender.limit = sender.next
        self.goal = self.tally.sent

    @property
    def done(self) -> bool:
        """Whether everything has been sent and, where there are answers, answered."""
        tally = self.tally
        return tally.sent >= self.goal and (self.senders[0].qos == 0 or tally.acked >= tally.sent)


class Scheduled(Pacing):
    """A schedule of so many messages per second, by the publishers in turn; each is stamped with when it was due."""

    scheduled = True

    def __init__(self, clients: Sequence[Client], tally: Tally, messages: int, rate: float) -> None:
        super().__init__(clients, tally, messages)
        self.interval_ns = 1e9 / rate
        self.tick_ns = max(TICK_NS, int(self.interval_ns))
        self.start_ns = 0
        self.released = 0

    def begin(self, now_ns: int) -> None:
        """Start the schedule now."""
        self.start_ns = now_ns
        step = int(self.interval_ns * len(self.senders))
        for number, sender in enumerate(self.senders):
            sender.schedule(now_ns, step, int(number * self.interval_ns), self.tick_ns)

    def advance(self, now_ns: int) -> Sequence[Client]:
        """Release the messages that are due."""
        if self.stopped:
            return ()
        ticks = (now_ns - self.start_ns) // self.tick_ns
        due = min(int(ticks * self.tick_ns / self.interval_ns) + 1, self.goal)
        first, count = self.released, len(self.senders)
        if due <= first:
            return ()
        self.released = due
        if due - first >= count:
            for number, sender in enumerate(self.senders):
                sender.limit = (due - number + count - 1) // count
            return self.clients
        places = [place % count for place in range(first, due)]
        for place in places:
            self.senders[place].limit += 1
        return [self.clients[place] for place in places]

    def next_ns(self, now_ns: int) -> int | None:
        """Return the time of the next tick."""
        if self.stopped or self.released >= self.goal:
            return None
        return self.start_ns + ((now_ns - self.start_ns) // self.tick_ns + 1) * self.tick_ns


class Held(Pacing):
    """Full speed, but never with more than `outstanding` messages on their way to the subscribers."""

    def __init__(self, clients: Sequence[Client], tally: Tally, messages: int, outstanding: int, fan: float) -> None:
        super().__init__(clients, tally, messages)
        self.outstanding = outstanding
        self.fan = fan
        self.forgiven = 0.0
        self._blocked_ns = 0

    def begin(self, now_ns: int) -> None:
        """Start publishing."""
        self._blocked_ns = now_ns
        self.advance(now_ns)

    def advance(self, now_ns: int) -> Sequence[Client]:
        """Give out what has become free, a quarter or more at a time."""
        tally = self.tally
        if self.stopped or sum(s.limit for s in self.senders) > tally.sent:
            return ()
        free = self.outstanding - tally.sent + (tally.received + self.forgiven) / self.fan
        if free < self.outstanding / 4:
            if now_ns - max(tally.last_ns, self._blocked_ns) > FORGIVE_NS:
                self.forgiven = tally.sent * self.fan - tally.received
            return ()
        self._blocked_ns = now_ns
        share = max(1, int(free) // len(self.senders))
        for sender, quota in zip(self.senders, self.quotas, strict=True):
            sender.limit = min(quota, sender.limit + share)
        return self.clients
