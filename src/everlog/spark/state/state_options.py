"""The options of `spark.read.format("everlog")` for streams and key-value stores."""

from collections.abc import Mapping
from dataclasses import dataclass

from everlog.base import UsageError
from everlog.spark.source_options import choice, known_options, number_above_0, parse_filter_list, place_of
from everlog.store import BeginKind, parse_begin

OPTIONS = {
    "path": "the data directory of a broker or a persist server",
    "streams": "which streams to read: a name, a filter as in team/#, or several, a JSON list or one a line",
    "kv": "or which key-value stores, so too",
    "to": "as of which position, as in 0:1234; as of now by default",
    "value": "binary or string",
    "tasks": "about how many tasks read; three for each core by default",
}


@dataclass(frozen=True, slots=True)
class StateOptions:
    """Which streams or key-value stores are read, and as of where."""

    path: str
    kind: str  # streams or kv
    filters: tuple[str, ...]
    ends: tuple[tuple[int, int], ...] = ()  # by shard; the others are read as they are now
    is_text: bool = False
    tasks: int | None = None


def is_state(given: Mapping[str, str]) -> bool:
    """Return whether the options of a frame ask for streams or key-value stores."""
    return any(name.lower() in ("streams", "kv") for name in given)


def read_state_options(given: Mapping[str, str]) -> StateOptions:
    """Parse the options of a frame."""
    options = known_options(given, OPTIONS)
    if not options.get("path"):
        raise UsageError("where are the streams?", hint='say .load(DATA_DIR) or .option("path", DATA_DIR)')
    if "streams" in options and "kv" in options:
        raise UsageError("a frame is of streams or of key-value stores", hint="make two frames")
    kind = "streams" if "streams" in options else "kv"
    return StateOptions(
        path=place_of(options["path"]),
        kind=kind,
        filters=parse_filter_list(kind, options[kind]),
        ends=_ends(options.get("to", "latest")),
        is_text=choice(options, "value", ("binary", "string")) == "string",
        tasks=number_above_0("tasks", options["tasks"]) if "tasks" in options else None,
    )


def _ends(text: str) -> tuple[tuple[int, int], ...]:
    end = parse_begin(text, 0)
    if end.kind not in (BeginKind.LATEST, BeginKind.POSITION):
        raise UsageError(
            f"streams and key-value stores are read as of a position, not of {text!r}", hint="write latest, or 0:1234"
        )
    return end.offsets
