"""Errors of ours that were raised in a task of Spark, found again in the text that Spark makes of them."""

import re

from everlog.base import EverlogError, StorageError, Unavailable, UsageError

_OURS = re.compile(r"everlog\.base\.errors\.(\w+): (.*)")
_KINDS: dict[str, type[EverlogError]] = {"UsageError": UsageError, "Unavailable": Unavailable}


def task_error(what: str, text: str, hint: str) -> EverlogError:
    """Return the error of ours that Spark's text names, or one that says `what` failed with Spark's first words."""
    found = _OURS.findall(text)
    if found:
        kind, message = found[-1]
        return _KINDS.get(kind, StorageError)(message.strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return StorageError(f"{what}: {lines[0] if lines else 'no reason given'}", hint=hint)
