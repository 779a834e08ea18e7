"""The options of `spark.readStream.format("everlog")`: those of a batch read, and how much a micro-batch takes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from everlog.base import UsageError
from everlog.spark.source_options import SourceOptions, read_options

STREAM_OPTIONS = {
    "maxRecordsPerTrigger": "how many records a micro-batch takes at most, of all topics",
    "maxBytesPerTrigger": "about how many bytes of log, as in 64m",
}

_SIZE = re.compile(r"(\d{1,15})([kmg]?)b?", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream reads, and how much at once."""

    source: SourceOptions
    max_records: int | None = None
    max_bytes: int | None = None


def read_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a stream; refuses those of a batch that make no sense for it."""
    source = read_options(given, STREAM_OPTIONS)
    named = {name.lower(): value for name, value in given.items()}
    if "to" in named:
        raise UsageError("a stream has no end", hint="leave out the option to, or read a batch: spark.read")
    if source.tier == "table":
        raise UsageError(
            "a stream reads the log", hint="set the option tier to all or log, or read a batch: spark.read"
        )
    return StreamOptions(
        source=source,
        max_records=_size("maxRecordsPerTrigger", named),
        max_bytes=_size("maxBytesPerTrigger", named),
    )


def _size(name: str, named: Mapping[str, str]) -> int | None:
    text = named.get(name.lower())
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise UsageError(f"the option {name} has {text!r}", hint="write a number above 0, as in 100000 or 64m")
    return int(found[1]) * _UNITS[found[2].lower()]
