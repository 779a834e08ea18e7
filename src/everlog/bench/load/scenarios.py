"""The scenarios by name, and how one is played: with a report, whatever happens."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everlog.base import EverlogError, UsageError
from everlog.bench.load.connection_scenarios import burst, churn, filters, idle
from everlog.bench.load.durable_scenarios import comeback, durable
from everlog.bench.load.engine import Trouble
from everlog.bench.load.flow_scenarios import bystander, echo, flow
from everlog.bench.load.options import Options
from everlog.bench.load.run import Run
from everlog.bench.load.scenario_limits import allow_files
from everlog.bench.load.session_scenarios import recall, resume, retained
from everlog.bench.load.stall_scenario import stall

OUTSTANDING = 2000  # messages on their way in a fan-out at QoS 0, unless the options say otherwise
BYSTANDER_RATE = 1000.0  # messages a second of both publishers


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario: what it does, how it is played, and what it makes of the options."""

    help: str
    play: Callable[[Run], None]
    fix: Callable[[Options], Options] = lambda options: options
    in_waves: bool = False  # it makes do with fewer open files than it has connections


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
    "idle": Scenario("open connections at full speed and hold them", idle),
    "churn": Scenario("connect and vanish, over and over, beside a pair that exchanges messages", churn),
    "burst": Scenario("all connect in one burst, and vanish in another", burst),
    "filters": Scenario("each connection subscribes to --topics filters in one packet, then leaves", filters),
    "durable": Scenario("durable sessions connect, subscribe and leave, --burst at once", durable, in_waves=True),
    "comeback": Scenario("durable sessions come back, all of them at once", comeback, in_waves=True),
    "stall": Scenario("pings, connects and a pair that nothing is kept of, beside kept messages", stall),
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
    allow_files(
        options.connections + options.publishers + options.subscribers + options.slow, at_most=scenario.in_waves
    )
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
