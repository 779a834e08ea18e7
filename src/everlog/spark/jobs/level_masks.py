"""What a topic level looks like with its numbers and identifiers masked: `press-42` is `press-{number}`.

The same table of patterns makes the plain function and the Spark expression, in a syntax that Java and Python share.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

ANY = "{any}"  # a level with so many values that they were not looked at one by one

# A level that matches as a whole becomes its class; the first that matches counts.
CLASSES: dict[str, str] = {
    "{number}": r"[+-]?[0-9]+(\.[0-9]+)?",
    "{uuid}": r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "{date}": r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T _][0-9:.Z+-]*)?",
    "{ip}": r"[0-9]{1,3}(\.[0-9]{1,3}){3}",
    "{mac}": r"[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}",
    "{hex}": r"(?=.*[0-9])(?=.*[A-Fa-f])[0-9A-Fa-f]{8,}",
    "{id}": r"(?=.{16,}$)[A-Za-z0-9]*[0-9][A-Za-z]+[0-9][A-Za-z0-9]*",
}
_WHOLE = {name: re.compile(pattern) for name, pattern in CLASSES.items()}
_DIGITS = re.compile("[0-9]+")


def mask(level: str) -> str:
    """Return the class of a level, or the level with its runs of digits masked."""
    for name, pattern in _WHOLE.items():
        if pattern.fullmatch(level):
            return name
    return _DIGITS.sub("{number}", level)


def fits(level: str, masked: str) -> bool:
    """Return whether a level is one of those that a mask stands for."""
    return masked == ANY or mask(level) == masked


def masked_levels(topic: "Column") -> "Column":
    """Return a column with the masked levels of each topic as an array."""
    from pyspark.sql import functions as F

    def one(level: "Column") -> "Column":
        found = F.regexp_replace(level, "[0-9]+", "{number}")
        for name, pattern in reversed(CLASSES.items()):
            found = F.when(level.rlike(rf"^(?:{pattern})\z"), F.lit(name)).otherwise(found)
        return found

    return F.transform(F.split(topic, "/", -1), one)
