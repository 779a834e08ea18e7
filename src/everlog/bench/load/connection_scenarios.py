"""Many connections: the scenarios idle, churn, burst and filters."""

from collections import deque

from everlog.bench.load.figures import Histogram
from everlog.bench.load.load_client import Client, State
from everlog.bench.load.pacing import Scheduled
from everlog.bench.load.posix import now_ns
from everlog.bench.load.run import Run, latency
from everlog.bench.load.turn_clock import TurnClock

OTHERS_RATE = 500.0  # messages a second of the pair whose latency shows what churn does to others


def idle(run: Run) -> None:
    """Open connections at full speed and hold them: what a connect and a quiet connection cost."""
    options, engine = run.options, run.engine
    clients = [Client(run.shared, run.name("c", number)) for number in range(options.connections)]
    run.reset_peak()
    before = run.look()
    run.start_ns = now_ns()
    engine.connect(clients, options.burst)
    run.end_ns = now_ns()
    run.report |= run.rate(len(clients), before, run.look())
    engine.serve_for(0.5)
    held = run.look()
    engine.serve_for(options.hold)
    later = run.look()
    run.report |= run.counts() | {
        "connections": len(clients),
        "alive_after_hold": sum(client.state is State.UP for client in clients),
        "lost": sum(client.state is not State.UP for client in clients),
    }
    if held.cpu_s is not None and later.cpu_s is not None:
        seconds = (later.at_ns - held.at_ns) / 1e9
        run.report["kb_per_connection"] = round(1024 * (held.rss_mb - before.rss_mb) / len(clients), 2)
        run.report["hold_cpu_pct"] = round(100 * (later.cpu_s - held.cpu_s) / seconds, 2)
    engine.leave(clients)
    run.settle()
    run.report["rss_after_close_mb"] = round(run.look().rss_mb, 2)


def churn(run: Run) -> None:
    """Let clients connect and vanish without DISCONNECT, over and over, while one pair exchanges messages.

    As many as `connections` are there at once; the oldest vanish.
    """
    options, engine, tally = run.options, run.engine, run.tally
    (publisher,) = run.publishers(1)
    checker = run.checker(1)
    subscriber = run.subscriber(0, (run.naming.everything,), checker)
    engine.connect([subscriber, publisher], options.burst)
    run.reset_peak()
    before = run.look()
    run.start_ns = now_ns()
    pacing = Scheduled([publisher], tally, 0, OTHERS_RATE)
    engine.pacing = pacing
    pacing.begin(run.start_ns)
    until = run.start_ns + int(options.seconds * 1e9)
    connects, times = 0, Histogram()
    alive: deque[Client] = deque()
    while now_ns() < until:
        count = min(options.burst, options.connections)
        clients = [Client(run.shared, run.name("v", connects + number)) for number in range(count)]
        engine.connect(clients, options.burst)
        for client in clients:
            times.add(client.up_ns - client.connect_ns)
        alive.extend(clients)
        connects += len(clients)
        engine.drop(alive.popleft() for _ in range(len(alive) - options.connections))
    run.end_ns = now_ns()
    pacing.stop()
    engine.until(lambda: pacing.done)
    engine.pacing = None
    end = run.end_ns
    run.report["lost"] = run.drain([(checker, tally.sent)])
    run.end_ns = end
    run.report |= run.rate(connects, before, run.look()) | run.counts()
    run.report |= {"connects": connects, "latency_us": latency(tally.deliveries), "connect_us": latency(times)}
    engine.drop(alive)
    engine.leave([publisher, subscriber])


def burst(run: Run) -> None:
    """Let all connect in one burst and vanish in another; report the longest turn of the broker's loop in each."""
    options, engine = run.options, run.engine
    clients = [Client(run.shared, run.name("c", number)) for number in range(options.connections)]
    clock = TurnClock(options.turn_clock) if options.turn_clock else None
    run.settle()
    for name in ("connects", "ends"):
        if clock is not None:
            clock.reset()
        before = run.look()
        run.start_ns = now_ns()
        if name == "connects":
            engine.connect(clients, len(clients))
        else:
            engine.drop(clients)
        run.end_ns = now_ns()
        run.settle()
        run.report[name] = run.rate(len(clients), before, run.look())
        if clock is not None:
            run.report[name]["turn"] = clock.read()
    run.report |= run.report["connects"] | run.counts() | {"lost": 0}


def filters(run: Run) -> None:
    """Let each client subscribe to many filters of its own in one packet, then leave; a filter is what counts."""
    options, engine = run.options, run.engine
    count = options.connections * options.topics
    clients = [Client(run.shared, run.name("c", number)) for number in range(options.connections)]
    engine.connect(clients, options.burst)
    run.settle()
    before = run.look()
    run.start_ns = now_ns()
    for number, client in enumerate(clients):
        client.subscribe(tuple(run.naming.topic(number, topic) for topic in range(options.topics)))
    engine.push(clients)
    engine.until(lambda: all(client.state is State.UP for client in clients))
    run.end_ns = now_ns()
    between = run.look()
    run.report |= run.rate(count, before, between) | run.counts() | {"lost": 0}
    run.start_ns = now_ns()
    engine.leave(clients)
    run.end_ns = now_ns()
    run.settle()
    run.report["leave"] = run.rate(count, between, run.look())
