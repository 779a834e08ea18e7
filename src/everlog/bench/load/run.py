"""One run: its clients, its phases and the report that it fills in as it goes, so that a broken run reports too."""

import secrets
from collections.abc import Sequence
from itertools import chain
from typing import Any

from everlog.bench.load.checker import Checker
from everlog.bench.load.engine import Engine
from everlog.bench.load.figures import Histogram, Tally
from everlog.bench.load.load_client import Client, Shared
from everlog.bench.load.options import Naming, Options, filler_of, head_of
from everlog.bench.load.pacing import Held, Pacing, Scheduled
from everlog.bench.load.posix import now_ns
from everlog.bench.load.sender import Sender
from everlog.bench.load.usage import Sample, between, reset_peak, sample

NAP_S = 1e-3
FEW_INFLIGHT = 64  # with fewer messages under way than this, every one is waited for without naps
DRAIN_S = 3.0  # nothing was delivered for so long: what is missing is lost


class Run:
    """Everything that belongs to one run of one scenario."""

    def __init__(self, options: Options, tolerant: bool = False) -> None:
        self.options = options
        self.number = options.number or secrets.randbits(32)
        self.shared = Shared(options.port, options.username, options.password)
        self.engine = Engine(self.shared, options.timeout, options.stall, tolerant)
        self.naming = Naming(self.number)
        self.filler = filler_of(options.size)
        self.report: dict[str, Any] = {}
        self.start_ns = self.end_ns = now_ns()

    @property
    def tally(self) -> Tally:
        """The counts of all clients."""
        return self.shared.tally

    # Clients

    def name(self, role: str, number: int) -> str:
        """Return a client id of this run."""
        return f"{self.naming.prefix}-{role}{number:05d}"

    def publishers(self, count: int, topics: int = 1, retain: bool = False, size: int | None = None) -> list[Client]:
        """Return publishers of the run, each with topics of its own."""
        filler = self.filler if size is None else filler_of(size)
        names = [[self.naming.topic(number, topic) for topic in range(topics)] for number in range(count)]
        for name in chain.from_iterable(names):  # in the order of streams, as the checkers expect
            self.shared.table.intern(name.encode())
        return [self.publisher(number, mine, self.tally, filler, retain) for number, mine in enumerate(names)]

    def publisher(self, number: int, topics: list[str], tally: Tally, filler: bytes, retain: bool = False) -> Client:
        """Return a publisher of these topics, which goes round them."""
        qos, window = self.options.qos, self.options.window
        heads = [head_of(name, len(filler), qos, retain) for name in topics]
        sender = Sender(tally, self.number, number, heads, qos, filler, window)
        return Client(self.shared, self.name("p", number), sender=sender)

    def checker(self, publishers: int, topics: int = 1, retain: bool = False, tally: Tally | None = None) -> Checker:
        """Return a checker for one subscriber of those publishers."""
        names = [self.naming.topic(number, topic) for number in range(publishers) for topic in range(topics)]
        qos = self.options.delivered_qos
        prefix = head_of(names[0], len(self.filler), qos, retain)[: -len(names[0])]
        flags = qos << 1 | retain
        return Checker(
            tally or self.tally, self.number, publishers, topics, self.filler, flags, prefix, "".join(names).encode()
        )

    def subscriber(self, number: int, filters: tuple[str, ...], checker: Checker, clean: bool = True) -> Client:
        """Return a subscriber of the run."""
        options = self.options
        qos = options.qos if options.sub_qos is None else options.sub_qos
        return Client(self.shared, self.name("s", number), clean=clean, filters=filters, qos=qos, checker=checker)

    # Phases

    def settle(self) -> None:
        """Pause, so that one phase does not pay for another."""
        self.engine.serve_for(self.options.settle)

    def look(self) -> Sample:
        """Return the state of the machine now."""
        return sample(self.options.pids)

    def reset_peak(self) -> None:
        """Count peak memory from here on."""
        reset_peak(self.options.pids)

    def publish(self, clients: Sequence[Client], fan: float = 0.0, messages: int | None = None) -> None:
        """Send as the options say, until everything is sent and answered. `fan` is the deliveries of a message."""
        options, engine = self.options, self.engine
        count = options.messages if messages is None else messages
        pacing: Pacing
        if options.rate:
            pacing = Scheduled(clients, self.tally, count, options.rate)
        elif options.outstanding and fan:
            pacing = Held(clients, self.tally, count, options.outstanding, fan)
        else:
            pacing = Pacing(clients, self.tally, count)
        under_way = options.window * len(clients) if options.qos else options.outstanding or 1 << 20
        if not options.rate and under_way >= FEW_INFLIGHT:
            engine.naps_s = NAP_S if options.window > 1 else NAP_S / 5
            engine.inflight_limit = under_way * (1 + fan)
            for sender in pacing.senders:
                sender.least = max(1, options.window // 4)
        self.start_ns = self.end_ns = start = now_ns()
        until = start + int(options.seconds * 1e9) if not count else None
        engine.pacing = pacing
        pacing.begin(start)
        engine.push(clients)

        def done() -> bool:
            if until is not None and not pacing.stopped and now_ns() >= until:
                pacing.stop()
            return pacing.done

        try:
            engine.until(done)
            if options.qos == 0:
                engine.ping(clients)
        finally:
            engine.pacing = None
            self.end_ns = now_ns()

    def drain(self, checkers: Sequence[tuple[Checker, int]]) -> int:
        """Wait until each checker has seen as many distinct messages as it should; return how many are missing."""
        self.engine.until(lambda: all(checker.distinct >= wanted for checker, wanted in checkers), DRAIN_S)
        self.end_ns = max(self.tally.last_ns, self.start_ns)
        return sum(max(0, wanted - checker.distinct) for checker, wanted in checkers)

    # The report

    def rate(self, messages: int, before: Sample, after: Sample) -> dict[str, Any]:
        """Return the figures of a phase in which so many messages counted."""
        end_ns = self.end_ns if self.end_ns > self.start_ns else now_ns()  # the run broke
        seconds = max((end_ns - self.start_ns) / 1e9, 1e-9)
        return {
            "seconds": round(seconds, 4),
            "msgs_per_s": round(messages / seconds, 1),
            **between(before, after, messages),
        }

    def counts(self) -> dict[str, Any]:
        """Return what was counted; troubles only where there are any."""
        tally = self.tally
        figures: dict[str, Any] = {
            "sent": tally.sent,
            "acked": tally.acked,
            "received": tally.received,
            "duplicates": tally.duplicates,
            "out_of_order": tally.late,
        }
        troubles = {
            "foreign": tally.foreign,
            "corrupt": tally.corrupt,
            "wrong_qos_or_retain": tally.wrong_flags,
            "unexpected_acks": tally.strange_acks,
            "dup_flagged": tally.redelivered,
            "disconnects": self.engine.disconnects,
        }
        return figures | {name: count for name, count in troubles.items() if count}


def latency(histogram: Histogram) -> dict[str, Any] | None:
    """Return quantiles in microseconds, or None when nothing was counted."""
    if not histogram.count:
        return None
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    figures = {name: round(histogram.quantile(share) / 1e3, 1) for name, share in shares.items()}
    return figures | {"max": round(histogram.highest / 1e3, 1), "mean": round(histogram.mean / 1e3, 1)}
