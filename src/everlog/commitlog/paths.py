"""The names of the files in a shard's directory. Segments sort by name as they do by offset."""

LOCK = "LOCK"
MARK = "mark"
TEMPORARY = ".tmp"
_DIGITS = 20


def segment_path(directory: str, base_offset: int) -> str:
    """Return the path of the segment that begins with this offset."""
    return f"{directory}/{base_offset:020d}.log"


def side_path(directory: str, base_offset: int) -> str:
    """Return the path of the side file of the segment that begins with this offset."""
    return f"{directory}/{base_offset:020d}.idx"


def base_of(name: str, suffix: str) -> int | None:
    """Return the base offset in a file's name, or None if it has another kind of name."""
    stem, dot, rest = name.partition(".")
    if not dot or "." + rest != suffix or len(stem) != _DIGITS or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


def segment_bases(names: list[str]) -> list[int]:
    """Return the base offsets of the segments among the files, in order."""
    return sorted(base for name in names if (base := base_of(name, ".log")) is not None)
