"""Learns shapes from masked topics: which levels are part of the shape, and which only vary.

Topics of one depth are split level by level. Levels whose values have much the same beneath them vary (rooms of a
house, plants of a company); so do those with more values than anybody would have written by hand. What remains is part
of the shape. Pure: it sees masked topics, of which there are far fewer than topics.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from everlog.spark.jobs.level_masks import ANY, CLASSES

MAX_NAMES = 12  # unlike values that may stand side by side at one level; with more, the light ones vary
HEAVY = 3  # times the mean number of topics of a value: such a value stays part of the shape
ALIKE = 0.6  # of what is beneath the smaller of two values is beneath the other too
PURE = 0.9  # of the topics have a number there: then a word in its place stands apart
ONLY = 0.98  # of the topics have one word there: then another in its place stands apart
QUIET = 0.1  # of the messages a topic that another value has: a value below, spelled like it, is a slip
SPELLED_ALIKE = 0.8  # of the letters of two words
COMPARED = 64  # groups that a value is compared with, the largest; beyond them it stands alone

_CLASSES = frozenset((*CLASSES, ANY))


@dataclass(frozen=True, slots=True)
class Pattern:
    """A masked topic, and how many topics and messages it stands for."""

    levels: tuple[str, ...]
    topics: int
    messages: int


@dataclass(frozen=True, slots=True)
class Draft:
    """A shape: a text for each level, or None where it varies, and the patterns that it covers, by number."""

    levels: tuple[str | None, ...]
    patterns: tuple[int, ...]


@dataclass(slots=True)
class _Group:
    """Values of one level that are treated alike."""

    values: list[str]
    rows: list[int]
    beneath: set[tuple[str, ...]]
    topics: int
    messages: int


def learn_shapes(patterns: Sequence[Pattern]) -> list[Draft]:
    """Return the shapes of these patterns; every pattern is in exactly one."""
    kinds: dict[tuple[int, bool], list[int]] = {}
    for row, pattern in enumerate(patterns):
        kinds.setdefault((len(pattern.levels), pattern.levels[0].startswith("$")), []).append(row)
    return [draft for _, rows in sorted(kinds.items()) for draft in _split(patterns, rows, ())]


def _split(patterns: Sequence[Pattern], rows: list[int], slots: tuple[str | None, ...]) -> Iterator[Draft]:
    level = len(slots)
    if level == len(patterns[rows[0]].levels):
        yield Draft(slots, tuple(rows))
        return
    for group in _groups(patterns, rows, level):
        yield from _split(patterns, group.rows, (*slots, _slot(group.values)))


def _slot(values: list[str]) -> str | None:
    if len(values) == 1:
        return None if values[0] == ANY else values[0]
    if set(values) <= {"{number}", "{hex}"}:  # some hexadecimal numbers have no letter
        return "{hex}"
    return None


def _groups(patterns: Sequence[Pattern], rows: list[int], level: int) -> list[_Group]:
    single: dict[str, _Group] = {}
    for row in rows:
        value = patterns[row].levels[level]
        group = single.setdefault(value, _Group([value], [], set(), 0, 0))
        group.rows.append(row)
        group.beneath.add(patterns[row].levels[level + 1 :])
        group.topics += patterns[row].topics
        group.messages += patterns[row].messages
    found = sorted(single.values(), key=lambda one: (-one.topics, one.values))
    is_last = level + 1 == len(patterns[rows[0]].levels)
    if not is_last:  # at the last level nothing is beneath, so everything would be alike
        found = _join_alike(found)
    return _join_light(found)


def _join_alike(groups: list[_Group]) -> list[_Group]:
    """Join values that have much the same beneath them, apart from words where numbers belong."""
    joined: list[_Group] = []
    for group in groups:
        home = next((one for one in joined[:COMPARED] if _alike(one.beneath, group.beneath)), None)
        if home is None:
            joined.append(_copy(group))
        else:
            _take(home, group)
    single = {group.values[0]: group for group in groups}
    return [part for group in joined for part in _without_strangers(group, [single[value] for value in group.values])]


def _alike(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> bool:
    return len(one & other) >= ALIKE * min(len(one), len(other))


def _without_strangers(group: _Group, parts: list[_Group]) -> list[_Group]:
    """Separate the few values that do not fit a group of nearly only identifiers, or nearly only one word."""
    known = [part for part in parts if part.values[0] in _CLASSES]
    strangers = [part for part in parts if part.values[0] not in _CLASSES]
    if known and strangers and sum(part.topics for part in known) >= PURE * group.topics:
        return [_merged(known), *strangers]
    if not known and len(parts) > 1 and max(part.topics for part in parts) >= ONLY * group.topics:
        return parts
    slips = [part for part in parts if len(parts) <= COMPARED and any(_is_slip(part, other) for other in parts)]
    return [_merged([part for part in parts if part not in slips]), *slips] if slips else [group]


def _is_slip(part: _Group, other: _Group) -> bool:
    """Return whether a value is spelled nearly like another, and hardly used beside it."""
    if part.messages * other.topics >= QUIET * other.messages * part.topics:
        return False
    one, two = part.values[0], other.values[0]
    return one.casefold() != two.casefold() and SequenceMatcher(None, one, two).ratio() >= SPELLED_ALIKE


def _join_light(groups: list[_Group]) -> list[_Group]:
    """Join the light values when there are too many side by side: these vary."""
    if len(groups) <= MAX_NAMES:
        return groups
    mean = sum(group.topics for group in groups) / len(groups)
    heavy: list[_Group] = []
    light: list[_Group] = []
    for group in groups:
        stays = group.topics >= HEAVY * mean or group.values[0] in _CLASSES
        (heavy if stays else light).append(group)
    return [*heavy, _merged(light)] if len(light) > 1 else groups


def _merged(groups: Iterable[_Group]) -> _Group:
    first, *others = groups
    whole = _copy(first)
    for group in others:
        _take(whole, group)
    return whole


def _copy(group: _Group) -> _Group:
    return _Group(list(group.values), list(group.rows), set(group.beneath), group.topics, group.messages)


def _take(home: _Group, group: _Group) -> None:
    home.values += group.values
    home.rows += group.rows
    home.beneath |= group.beneath
    home.topics += group.topics
    home.messages += group.messages
