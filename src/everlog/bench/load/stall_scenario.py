"""The scenario stall: who waits for no commit, beside a publisher whose every message waits for the disk."""

from everlog.bench.load.figures import Histogram, Tally
from everlog.bench.load.load_client import Client
from everlog.bench.load.options import head_of
from everlog.bench.load.pacing import Scheduled
from everlog.bench.load.posix import now_ns
from everlog.bench.load.run import Run, latency
from everlog.bench.load.sender import Sender

FREE, KEPT = 0, 1  # publishers: of what nothing keeps, and of what a durable session keeps
PAIR_RATE = 200.0  # messages a second that are not kept
_WINDOW = 4  # kept messages that wait for the disk at any time
_ENDLESS = 1 << 60


def stall(run: Run) -> None:
    """Let one client ping, one connect over and over and a pair exchange messages that nothing keeps.

    Beside them a publisher has messages under way that are kept, so that the disk is never idle. The broker is to be
    told never to keep the topics of publisher 0.
    """
    options, engine, tally = run.options, run.engine, run.tally
    (free,) = run.publishers(1)
    kept = _kept_publisher(run)
    assert kept.sender is not None
    absent = Client(run.shared, run.name("d", 0), clean=False, filters=(run.naming.of_publisher(KEPT),), qos=1)
    checker = run.checker(1)
    subscriber = run.subscriber(0, (run.naming.of_publisher(FREE),), checker)
    witness = Client(run.shared, run.name("w", 0))
    engine.connect([absent], 1)
    engine.leave([absent])
    engine.connect([subscriber, free, witness], options.burst)
    engine.connect([kept], 1)
    engine.push([kept])
    run.settle()
    pings, connects = Histogram(), Histogram()
    before = run.look()
    run.start_ns = now_ns()
    pacing = Scheduled([free], tally, 0, PAIR_RATE)
    engine.pacing = pacing
    pacing.begin(run.start_ns)
    count = 0
    while now_ns() < run.start_ns + options.seconds * 1e9:
        begin = now_ns()
        engine.ping([witness])
        pings.add(now_ns() - begin)
        newcomer = Client(run.shared, run.name("n", count))
        engine.connect([newcomer], 1)
        connects.add(newcomer.up_ns - newcomer.connect_ns)
        engine.drop([newcomer])
        engine.serve_for(0.001)
        count += 1
    run.end_ns = end = now_ns()
    pacing.stop()
    engine.until(lambda: pacing.done)
    engine.pacing = None
    run.report["lost"] = run.drain([(checker, tally.sent)])
    run.end_ns = end
    run.report |= run.rate(tally.sent, before, run.look()) | run.counts()
    run.report |= {
        "ping_us": latency(pings),
        "connect_us": latency(connects),
        "latency_us": latency(tally.deliveries),
        "ack_latency_us": latency(tally.answers),
        "kept": kept.sender.next,
    }
    engine.drop([kept])
    engine.leave([free, subscriber, witness])


def _kept_publisher(run: Run) -> Client:
    """Return a publisher at QoS 1 that never ends, counted apart."""
    head = head_of(run.naming.topic(KEPT, 0), len(run.filler), 1, False)
    sender = Sender(Tally(), run.number, KEPT, [head], 1, run.filler, _WINDOW)
    sender.limit = _ENDLESS
    return Client(run.shared, run.name("p", KEPT), sender=sender)
