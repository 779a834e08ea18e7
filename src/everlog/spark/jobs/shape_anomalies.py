"""Finds shapes that are too rare to be meant, and what they were probably meant to be; pure."""

from collections.abc import Iterator, Sequence
from statistics import median

from everlog.spark.jobs.structure_file import Anomaly, Level, Shape

STRAY = "fits no shape"
RARE = 0.01  # of all messages: a shape below is rare if it has few topics too, or is quiet
QUIET = 0.1  # of a typical shape's messages a topic: a shape below is quiet; if rare, it needs no neighbour to be told
MAX_NOTES = 100  # those with fewest messages
MAX_MODELS = 500  # shapes that a rare one is compared with, those with most messages


def strangers(shapes: Sequence[Shape]) -> tuple[list[Shape], list[Anomaly]]:
    """Return the shapes without single topics that look like a mistake, and notes on all that are rare.

    A mistake is rare, and nearly like a common shape or hardly ever used.
    """
    topics, messages = sum(shape.topics for shape in shapes), sum(shape.messages for shape in shapes)
    used = [shape.messages / shape.topics for shape in shapes if shape.messages > RARE * messages]
    if not used:
        return list(shapes), []
    typical = median(used)
    rare: list[Shape] = []
    common: list[Shape] = []
    for shape in shapes:
        is_quiet = shape.messages < QUIET * typical * shape.topics
        few = shape.messages <= RARE * messages and (shape.topics <= RARE * topics or is_quiet)
        (rare if few else common).append(shape)
    notes = []
    strays: set[str] = set()
    for shape in sorted(rare, key=lambda one: (one.messages, one.text)):
        why = nearest(shape, common[:MAX_MODELS])
        if why is None and shape.messages < QUIET * typical * shape.topics:
            why = "unlike any other shape, and hardly used"
        if why is not None:
            kind = STRAY if shape.topics == 1 else "rare shape"
            strays.update([shape.text] * (kind == STRAY))
            notes.append(Anomaly(kind, shape.text, shape.topics, shape.messages, why))
    return [shape for shape in shapes if shape.text not in strays], notes[:MAX_NOTES]


def nearest(shape: Shape, common: Sequence[Shape]) -> str | None:
    """Return the one level in which a shape differs from a common one, in words, or None."""
    for model in common:
        if len(model.levels) == len(shape.levels):
            differing = [n for n, (own, usual) in enumerate(_pairs(shape, model)) if not _covered(own, usual)]
            shared = any(not usual.varies and _covered(own, usual) for own, usual in _pairs(shape, model))
            if len(differing) == 1 and shared:
                (level,) = differing
                own, usual = shape.levels[level], model.levels[level]
                return f"level {level + 1} is {own.text!r} where {model.text} has {usual.text!r}"
        elif abs(len(model.levels) - len(shape.levels)) == 1 and _is_one_off(shape, model):
            less = "lacks a level of" if len(shape.levels) < len(model.levels) else "has a level more than"
            return f"{less} {model.text}"
    return None


def _pairs(one: Shape, other: Shape) -> Iterator[tuple[Level, Level]]:
    return zip(one.levels, other.levels, strict=True)


def _covered(own: Level, usual: Level) -> bool:
    """Return whether the values of a rare shape's level could stand at that level of a common one."""
    return all(usual.admits(value) for value in own.examples)


def _is_one_off(one: Shape, other: Shape) -> bool:
    """Return whether the shorter shape is the longer without one of its levels."""
    short, long = sorted((one, other), key=lambda shape: len(shape.levels))
    flip = short is other
    for gap in range(len(long.levels)):
        rest = (*long.levels[:gap], *long.levels[gap + 1 :])
        pairs = zip(rest, short.levels, strict=True) if flip else zip(short.levels, rest, strict=True)
        fixed = any(not a.varies and not b.varies for a, b in zip(short.levels, rest, strict=True))
        if fixed and all(_covered(own, usual) for own, usual in pairs):
            return True
    return False
