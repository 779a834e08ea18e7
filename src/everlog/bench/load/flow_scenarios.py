"""Messages flowing through a broker: the scenarios ingest, fanout, many, echo and bystander."""

from everlog.bench.load.checker import Checker
from everlog.bench.load.figures import Tally
from everlog.bench.load.load_client import Client
from everlog.bench.load.run import Run, latency
from everlog.bench.load.usage import Sample
from everlog.store import shard_of

TOPICS = 400  # of a bystander and the busy publisher beside it
MANY = 100  # with fewer connections, memory has other reasons


def flow(run: Run) -> None:
    """Publish to subscribers of everything (or, with `own`, of one publisher each)."""
    options, engine = run.options, run.engine
    publishers = run.publishers(options.publishers, options.topics)
    fast, slow = _subscribers(run)
    empty = run.look()
    engine.connect([*fast, *slow], options.burst)
    engine.connect(publishers, options.burst)
    _measure(
        run, empty, publishers, [(client, _publishers_of(run, number)) for number, client in enumerate(fast)], slow
    )


def echo(run: Run) -> None:
    """Let publishers subscribe to their own topic each: every connection sends and receives."""
    options, engine = run.options, run.engine
    publishers = run.publishers(options.publishers, options.topics)
    checker = run.checker(options.publishers, options.topics)  # one for all: each stream goes to one of them
    for number, client in enumerate(publishers):
        client.checker = checker
        client.filters = (run.naming.of_publisher(number),)
        client.qos = options.qos
    empty = run.look()
    engine.connect(publishers, options.burst)
    _measure(run, empty, publishers, [(publishers[0], range(options.publishers))], [])


def bystander(run: Run) -> None:
    """Let one publisher use the first shard of the log only, and another all shards but that.

    Only the second one counts: its acks show whether it waits for a shard that it does not use.
    """
    names = [run.naming.topic(0, number) for number in range(TOPICS)]
    shards = {name: shard_of(name.encode(), run.options.shards) for name in names}
    bystander = run.publisher(0, [name for name in names if shards[name]], run.tally, run.filler)
    busy = run.publisher(1, [name for name in names if not shards[name]], Tally(), run.filler)
    empty = run.look()
    run.engine.connect([bystander, busy], run.options.burst)
    _measure(run, empty, [bystander, busy], [], [])


def _subscribers(run: Run) -> tuple[list[Client], list[Client]]:
    """Return the subscribers that count, and the slow ones, which have a tally of their own."""
    options = run.options
    fast: list[Client] = []
    slow: list[Client] = []
    for number in range(options.subscribers + options.slow):
        counts = number < options.subscribers
        checker = run.checker(options.publishers, options.topics, tally=None if counts else Tally())
        text = run.naming.of_publisher(number % options.publishers) if options.own else run.naming.everything
        client = run.subscriber(number, (text,), checker)
        client.slow = not counts
        (fast if counts else slow).append(client)
    return fast, slow


def _publishers_of(run: Run, subscriber: int) -> range:
    """Return the publishers whose messages a subscriber gets."""
    count = run.options.publishers
    first = subscriber % count
    return range(first, first + 1) if run.options.own else range(count)


def _measure(
    run: Run, empty: Sample, publishers: list[Client], audience: list[tuple[Client, range]], slow: list[Client]
) -> None:
    """Send, wait for what is owed, and report."""
    options, engine, tally = run.options, run.engine, run.tally
    run.settle()
    held = run.look()
    run.reset_peak()
    engine.slow = slow
    before = run.look()
    fan = sum(len(sources) for _, sources in audience) / options.publishers
    try:
        run.publish(publishers, fan)
        sent = [client.sender.next for client in publishers if client.sender is not None]
        owed: list[tuple[Checker, int]] = [
            (client.checker, sum(sent[number] for number in sources))
            for client, sources in audience
            if client.checker is not None
        ]
        missing = tally.sent - tally.acked if options.qos else 0
        run.report["lost"] = run.drain(owed) if owed else missing
    finally:
        after = run.look()
        counted = tally.received if audience else tally.acked if options.qos else tally.sent
        run.report |= run.rate(counted, before, after) | run.counts()
        run.report["latency_us"] = latency(tally.deliveries if audience else tally.answers)
        if audience:
            run.report["ack_latency_us"] = latency(tally.answers)
        connections = len({*publishers, *(client for client, _ in audience), *slow})
        if options.pids and connections >= MANY:
            run.report["kb_per_connection"] = round(1024 * (held.rss_mb - empty.rss_mb) / connections, 2)
            run.report["kb_per_connection_peak"] = round(1024 * (after.peak_mb - empty.rss_mb) / connections, 2)
    engine.slow = ()
    engine.leave([*publishers, *(client for client, _ in audience), *slow])
