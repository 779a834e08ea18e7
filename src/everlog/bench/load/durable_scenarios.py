"""Fleets of durable sessions: the scenarios durable and comeback."""

import resource
from collections import deque

from everlog.bench.load.load_client import Client
from everlog.bench.load.posix import now_ns
from everlog.bench.load.run import Run
from everlog.bench.load.scenario_limits import SPARE_FILES


def durable(run: Run) -> None:
    """Let durable sessions connect, subscribe to a filter each and leave: one after another, or `burst` at once.

    What the broker stores a little later counts too, so the figures are taken after a pause.
    """
    options, engine = run.options, run.engine
    clients = _fleet(run)
    before = run.look()
    run.start_ns = now_ns()
    for first in range(0, len(clients), options.burst):
        wave = clients[first : first + options.burst]
        engine.connect(wave, options.burst)
        engine.leave(wave)
    run.end_ns = now_ns()
    run.settle()
    run.report |= run.rate(len(clients), before, run.look()) | run.counts() | {"lost": 0}
    if not options.number:  # nobody comes back to them
        for client in clients:
            client.clean, client.filters = True, ()
        for first in range(0, len(clients), options.burst):
            engine.connect(clients[first : first + options.burst], options.burst)
            engine.leave(clients[first : first + options.burst])


def comeback(run: Run) -> None:
    """Let the sessions that `durable` has left behind come back, all of them as fast as they are taken.

    Half as many are connected at once as files may be open, since a broker keeps some and closes those that vanish a
    little later; beyond that, those that were back first vanish.
    """
    options, engine = run.options, run.engine
    clients = _fleet(run)
    for client in clients:
        client.filters = ()
    most = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FILES) // 2
    there: deque[Client] = deque()
    present = 0
    run.reset_peak()
    before = run.look()
    run.start_ns = now_ns()
    for first in range(0, len(clients), options.burst):
        wave = clients[first : first + options.burst]
        engine.drop(there.popleft() for _ in range(len(there) + len(wave) - most))
        engine.connect(wave, options.burst)
        there.extend(wave)
        present += sum(client.session_present for client in wave)
    run.end_ns = now_ns()
    run.report |= run.rate(len(clients), before, run.look()) | run.counts()
    run.report |= {"sessions_present": present, "lost": len(clients) - present if options.number else 0}
    engine.drop(there)


def _fleet(run: Run) -> list[Client]:
    """Return clients of durable sessions, each with a filter of its own."""
    return [
        Client(run.shared, run.name("d", number), clean=False, filters=(run.naming.of_publisher(number),), qos=1)
        for number in range(run.options.connections)
    ]
