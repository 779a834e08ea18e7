"""The scenarios by name, and how one is played: with a report, whatever happens."""

import gc
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everlog.base import EverlogError, UsageError
from everlog.bench.load.connection_scenarios import churn, idle
from everlog.bench.load.engine import Trouble
from everlog.bench.load.flow_scenarios import bystander, echo, flow
from everlog.bench.load.options import Options
from everlog.bench.load.run import Run
from everlog.bench.load.session_scenarios import recall, resume, retained

OUTSTANDING = 2000  # messages on their way in a fan-out at QoS 0, unless the options say otherwise
BYSTANDER_RATE = 1000.0  # messages a second of both publishers
_SPARE_FILES = 200  # file descriptors beside the connections


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario: what it does, how it is played, and what it makes of the options."""

    help: str
    play: Callable[[Run], None]
    fix: Callable[[Options], Options]


def _as_many(options: Options) -> Options:
    return options.but(publishers=options.connections, subscribers=1, window=1, topics=1, qos=max(1, options.qos))


def _held(options: Options) -> Options:
    """Hold full-speed publishers at QoS 0, which would fill the broker's queues until it drops messages."""
    unheld = options.qos == 0 and not options.rate and not options.outstanding
    return options.but(outstanding=OUTSTANDING) if unheld else options


def _stored(options: Options) -> Options:
    return options.but(qos=max(1, options.qos), messages=options.messages or 8000, rate=0.0, outstanding=0)


SCENARIOS = {
    "ingest": Scenario(
        "publishers only; QoS 0 ends with a PINGRESP on each connection",
        flow,
        lambda options: options.but(subscribers=0, slow=0, outstanding=0),
    ),
    "fanout": Scenario("publishers, and subscribers of everything (--own: of one publisher each)", flow, _held),
    "many": Scenario("connections with one QoS 1 message under way each, one subscriber of all", flow, _as_many),
    "echo": Scenario("the same, but each connection subscribes to its own topic instead", echo, _as_many),
    "bystander": Scenario(
        "a publisher that does without one shard of the log, beside one that uses no other",
        bystander,
        lambda options: options.but(qos=1, rate=options.rate or BYSTANDER_RATE),
    ),
    "idle": Scenario("open connections at full speed and hold them", idle, lambda o: o),
    "churn": Scenario("connect and vanish, over and over, beside a pair that exchanges messages", churn, lambda o: o),
    "resume": Scenario("durable sessions return after messages came; --hold 0: they stay away", resume, _stored),
    "recall": Scenario(
        "durable sessions return at once for one message each out of --stored others",
        recall,
        lambda options: _stored(options).but(topics=1, stored=options.stored or 100_000),
    ),
    "retained": Scenario("retained messages on as many topics, then subscribers", retained, _stored),
}


def play(options: Options) -> dict[str, Any]:
    """Play a scenario and return its report: of a run that broke, what it had counted, `status` and `error`."""
    scenario = SCENARIOS.get(options.scenario)
    if scenario is None:
        raise UsageError(f"no scenario {options.scenario!r}", hint=f"there are {', '.join(SCENARIOS)}")
    _allow_files(options.connections + options.publishers + options.subscribers + options.slow)
    run = Run(scenario.fix(options))
    status, error = "ok", ""
    gc.collect()
    gc.disable()  # a pause of ours would look like the broker's
    try:
        scenario.play(run)
    except Trouble as trouble:
        status, error = trouble.status, str(trouble)
        run.report |= run.counts()
    except EverlogError as problem:
        status, error = "error", str(problem)
    finally:
        gc.enable()
        run.engine.close()
    head: dict[str, Any] = {"tool": "everlog bench load", "scenario": options.scenario, "status": status}
    if options.label:
        head["label"] = options.label
    if error:
        head["error"] = error
    return head | run.report


def _allow_files(connections: int) -> None:
    """Raise the limit of open files to what this run needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = connections + _SPARE_FILES
    if need > soft:
        if need > hard != resource.RLIM_INFINITY:
            raise UsageError(f"{connections} connections need {need} open files, {hard} are allowed", hint="ulimit -Hn")
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
