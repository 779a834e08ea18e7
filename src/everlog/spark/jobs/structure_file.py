"""What was learned about a history's topics, as values and as the file `structure.json`.

`everlog spark structure DATA` writes the file into the data directory; compaction reads it to put rows that belong
together side by side (`Structure.cluster_key`). It is derived data, and may be missing or of another version.
The file is one JSON object with the fields of `Structure`: `format` is "everlog-structure", `version` 1, times are
RFC 3339, a shape's `levels` are in order, its `order` numbers those that vary (from 0), the fewest values first.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

from everlog.base import StorageError
from everlog.spark.jobs.level_masks import fits

FILE_NAME = "structure.json"
FORMAT, VERSION = "everlog-structure", 1
FIXED, NAME = "fixed", "name"  # kinds of levels; others are the names of the masks, as "number" and "uuid"
PATTERN = "pattern"  # a text with numbers in it, as press-{number}


@dataclass(frozen=True, slots=True)
class Level:
    """A level of a shape: its kind, the text or mask that it shows, how many values it has, and some of them."""

    kind: str
    text: str
    values: int
    examples: tuple[str, ...] = ()

    @property
    def varies(self) -> bool:
        """Whether topics of the shape differ here."""
        return self.kind != FIXED

    def admits(self, value: str) -> bool:
        """Return whether a topic of the shape may have this value here."""
        if self.kind == FIXED:
            return value == self.text
        return self.kind == NAME or fits(value, self.text)


@dataclass(frozen=True, slots=True)
class Shape:
    """Topics that are made alike, and how much was published to them."""

    text: str
    filter: str  # an MQTT filter that matches all of them, and maybe others
    topics: int
    messages: int
    bytes: int
    first: datetime
    last: datetime
    levels: tuple[Level, ...]
    order: tuple[int, ...]
    examples: tuple[str, ...] = ()

    def admits(self, levels: Sequence[str]) -> bool:
        """Return whether a topic with these levels is of this shape."""
        return len(levels) == len(self.levels) and all(
            level.admits(value) for level, value in zip(self.levels, levels, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that is not as the rest: what kind, where, how much of it, and why."""

    kind: str
    where: str
    topics: int
    messages: int
    why: str


@dataclass(frozen=True)
class Structure:
    """How many topics and messages there are, their shapes, those with most messages first, and what does not fit."""

    topics: int
    messages: int
    shapes: tuple[Shape, ...]
    anomalies: tuple[Anomaly, ...] = ()
    format: str = FORMAT
    version: int = VERSION
    _by_depth: dict[int, list[int]] = field(default_factory=dict, compare=False, repr=False)

    def shape_of(self, topic: str) -> int | None:
        """Return the number of the shape that fits a topic, the one with most fixed levels; None if none fits."""
        if not self._by_depth:
            self._by_depth.update(_by_depth(self.shapes))
        levels = topic.split("/")
        return next((n for n in self._by_depth.get(len(levels), ()) if self.shapes[n].admits(levels)), None)

    def cluster_key(self, topic: str) -> tuple[int, tuple[str, ...]]:
        """Return the key that sorts topics so that those that are read together lie together."""
        number = self.shape_of(topic)
        levels = topic.split("/")
        if number is None:
            return len(self.shapes), tuple(levels)
        return number, tuple(_sortable(levels[level]) for level in self.shapes[number].order)


def _by_depth(shapes: Sequence[Shape]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number in sorted(range(len(shapes)), key=lambda n: (len(shapes[n].order), n)):
        found.setdefault(len(shapes[number].levels), []).append(number)
    return found


def _sortable(value: str) -> str:
    return value.zfill(20) if value.isascii() and value.isdigit() else value


def write_structure(structure: Structure, path: Path) -> None:
    """Write a structure to a file, replacing it as a whole."""
    fields = msgspec.to_builtins(structure)
    del fields["_by_depth"]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(fields), indent=1) + b"\n")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(
            f"{path} can't be written: {error.strerror}", hint="give another file with --json"
        ) from error


def read_structure(path: Path) -> Structure | None:
    """Return the structure in a file, or None if there is no such file or it is of another version."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        about = msgspec.json.decode(content, type=dict[str, object])
        if about.get("format") != FORMAT or about.get("version") != VERSION:
            return None
        return msgspec.json.decode(content, type=Structure)
    except msgspec.DecodeError as error:
        raise StorageError(f"{path}: {error}", hint="make it again with: everlog spark structure DATA") from None
