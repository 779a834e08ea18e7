"""The lines that `everlog serve` prints when it is ready: where it listens, what it keeps, for how long and where."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from everlog import __version__, _kernels
from everlog.app.settings import Settings
from everlog.app.units import format_seconds, format_share, say_bytes
from everlog.broker import Event

_log = logging.getLogger("everlog")


@dataclass(frozen=True, slots=True)
class Started:
    """What is known only once the broker runs; `retention_bytes` is how much is kept of each shard."""

    addresses: list[str]
    url: str | None
    retention_bytes: int | None
    config: Path | None  # the file that the settings were read from


def announce(settings: Settings, started: Started) -> None:
    """Say what an operator wants to know at start: printed, or where logs are JSON, as an event like any other."""
    shards = settings.log.shards
    config, retention_bytes = started.config, started.retention_bytes
    lines = {
        "settings": "defaults, environment and flags: no everlog.toml here"
        if config is None
        else os.path.abspath(config),
        "data": f"{os.path.abspath(settings.log.data)} ({shards} shard{'s' if shards > 1 else ''})",
        "durability": settings.log.durability,
        "keeps": say_kept(settings),
        "retention": say_retention(settings, retention_bytes),
        "http": started.url or "none",
        "kernels": _kernels.describe(),
    }
    addresses = ", ".join(started.addresses)
    if settings.logging.format == "json":
        _log.info(Event("started", {"version": __version__, "listens": addresses, **lines}))
        return
    print(f"everlog {__version__} listens on {addresses}")
    for name, value in lines.items():
        print(f"  {name:<11} {value}", flush=True)


def say_kept(settings: Settings) -> str:
    """Say in words what is written to the log."""
    keep, durable = settings.keep, settings.sessions.durable
    owed = "what durable sessions are subscribed to"
    if not keep.filters:
        return f"only {owed}" if durable else "nothing: keep.filters is empty and sessions.durable is false"
    said = "every message" if "#" in keep.filters else ", ".join(keep.filters)
    if keep.min_qos:
        said += f" from QoS {keep.min_qos} upwards"
    if keep.never:
        said += f" but {', '.join(keep.never)}"
    plain = "#" in keep.filters and not keep.min_qos and not keep.never
    return said if plain or not durable else f"{said}; and {owed}"


def say_retention(settings: Settings, retention_bytes: int | None) -> str:
    """Say in words how long the log is kept, and how much of it."""
    log = settings.log
    limits = []
    if log.retention_age is not None:
        limits.append(format_seconds(log.retention_age))
    if retention_bytes is not None:
        size = f"at most {say_bytes(retention_bytes)}{' a shard' if log.shards > 1 else ''}"
        share = log.retention_bytes
        limits.append(f"{size} ({format_share(share)} of the disk)" if isinstance(share, float) else size)
    said = ", ".join(limits) or "for ever"
    if settings.retention.classes:
        said += f"; {len(settings.retention.classes)} classes of topics"
    return f"{said}; not before the table has it" if settings.retention.await_table else said
