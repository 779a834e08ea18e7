"""Clients that were away: the scenarios resume, recall and retained."""

from collections.abc import Sequence
from typing import Any

from everlog.bench.load.load_client import Client
from everlog.bench.load.pacing import Pacing
from everlog.bench.load.posix import now_ns
from everlog.bench.load.run import Run, latency
from everlog.bench.load.usage import between, metric

LOG_CPU = "everlog_catchup_read_seconds_total"  # what a broker says that reading for those who are behind took


def resume(run: Run) -> None:
    """Let durable sessions subscribe and leave, publish at QoS 1, and let all of them return at once.

    With `hold` 0 the sessions never return: what counts then is what they cost a publisher.
    """
    options, engine, tally = run.options, run.engine, run.tally
    sessions = [
        run.subscriber(number, (run.naming.everything,), run.checker(options.publishers, options.topics), clean=False)
        for number in range(options.subscribers)
    ]
    publishers = run.publishers(options.publishers, options.topics)
    _make_sessions(run, sessions)
    engine.connect(publishers, options.burst)
    run.settle()
    run.reset_peak()
    before = run.look()
    try:
        run.publish(publishers)
    finally:
        run.report["publish"] = run.rate(tally.acked, before, run.look())
        run.report["publish"]["latency_us"] = latency(tally.answers)
    engine.leave(publishers)
    run.settle()
    if options.hold:
        _return(run, sessions, [tally.sent] * len(sessions))
        if options.metrics_port:
            run.report["log_cpu_ms"] = round(1000 * metric(options.metrics_port, LOG_CPU), 2)
    else:
        run.report |= run.counts() | {"lost": 0, **run.report["publish"]}
    _wipe(run, sessions)


def recall(run: Run) -> None:
    """Let durable sessions return at once for one message each, out of many that concern nobody."""
    options, engine, tally = run.options, run.engine, run.tally
    count = options.connections
    caller, crowd = run.publishers(2, topics=count)
    for client in (caller, crowd):
        client.name += "-" + client.name  # not those of another scenario's run
    sessions = [
        run.subscriber(number, (run.naming.topic(0, number),), run.checker(2, count), clean=False)
        for number in range(count)
    ]
    _make_sessions(run, sessions)
    engine.connect([caller, crowd], options.burst)
    assert caller.sender is not None
    caller.sender.limit = count
    caller.sender.least = options.window  # one full window at a time, spread over the others' messages
    engine.push((caller,))
    before = run.look()
    run.publish([crowd], messages=options.stored)
    engine.until(lambda: tally.acked == tally.sent)
    run.report["publish"] = run.rate(tally.acked, before, run.look())
    engine.leave([caller, crowd])
    run.settle()
    _return(run, sessions, [1] * count)
    _wipe(run, sessions)


def retained(run: Run) -> None:
    """Retain messages on as many topics, let subscribers of all of them come, and one of a single topic by a wildcard;
    replace them all; delete them afterwards."""
    options, engine, tally = run.options, run.engine, run.tally
    topics = options.messages // options.publishers or 1
    count = topics * options.publishers
    publishers = run.publishers(options.publishers, topics, retain=True)
    engine.connect(publishers, options.burst)
    run.reset_peak()
    before = run.look()
    run.publish(publishers, messages=count)
    after = run.look()
    run.report["publish"] = run.rate(tally.acked if options.qos else tally.sent, before, after)
    run.report["bytes_per_message"] = round((after.rss_mb - before.rss_mb) * 2**20 / count - options.size)
    engine.leave(publishers)
    run.settle()
    subscribers = [
        run.subscriber(number, (run.naming.everything,), run.checker(options.publishers, topics, retain=True))
        for number in range(options.subscribers)
    ]
    _return(run, subscribers, [tally.sent] * len(subscribers), retained=True)
    _find(run, topics)
    run.report["again"] = _publish_all(run, topics, options.size)
    _publish_all(run, topics, 0)  # no payload deletes


def _find(run: Run, topics: int) -> None:
    """Measure how long a client waits that asks for one retained message with a wildcard first."""
    checker = run.checker(1, topics, retain=True)
    client = run.subscriber(run.options.subscribers, (run.naming.across(0, topics // 2),), checker)
    before, start = run.look(), now_ns()
    run.engine.connect([client], 1)
    missing = run.drain([(checker, 1)])
    seconds = (now_ns() - start) / 1e9
    run.report["find"] = {"seconds": round(seconds, 4), "lost": missing, **between(before, run.look(), 1)}
    run.engine.leave([client])


def _publish_all(run: Run, topics: int, size: int) -> dict[str, Any]:
    """Retain one more message on every topic, or delete what is there; return the figures."""
    options, engine, tally = run.options, run.engine, run.tally
    clients = run.publishers(options.publishers, topics, retain=True, size=size)
    engine.connect(clients, options.burst)
    pacing = Pacing(clients, tally, topics * options.publishers)
    pacing.goal += tally.sent
    acked, before = tally.acked, run.look()
    run.start_ns = now_ns()
    pacing.begin(run.start_ns)
    engine.push(clients)
    engine.until(lambda: pacing.done)
    run.end_ns = now_ns()
    figures = run.rate(tally.acked - acked, before, run.look())
    engine.leave(clients)
    return figures


def _make_sessions(run: Run, sessions: Sequence[Client]) -> None:
    run.engine.connect(sessions, run.options.burst)
    run.settle()
    run.engine.leave(sessions)
    run.settle()


def _return(run: Run, sessions: Sequence[Client], owed: list[int], retained: bool = False) -> None:
    """Let all connect at once, and measure until the last delivery."""
    options, engine, tally = run.options, run.engine, run.tally
    if not retained:
        for client in sessions:
            client.filters = ()
    run.reset_peak()
    before = run.look()
    run.start_ns = run.end_ns = now_ns()
    checkers = [(client.checker, wanted) for client, wanted in zip(sessions, owed, strict=True) if client.checker]
    try:
        engine.connect(sessions, options.burst)
        run.report["sessions_present"] = sum(client.session_present for client in sessions)
        run.report["lost"] = run.drain(checkers)
        engine.ping(sessions)  # the broker has read our acks
    finally:
        run.report |= run.rate(tally.received, before, run.look()) | run.counts()
    engine.leave(sessions)


def _wipe(run: Run, sessions: Sequence[Client]) -> None:
    """End the stored sessions by a clean connect."""
    for client in sessions:
        client.clean = True
        client.filters = ()
        client.checker = None
    run.engine.connect(sessions, run.options.burst)
    run.engine.leave(sessions)
