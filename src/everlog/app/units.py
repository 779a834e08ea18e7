"""Sizes, durations and rates as people write them: `64MiB`, `5s`, `7d`, `2000/s`; and back, the shortest exact way."""

import re

from everlog.base import UsageError

SIZES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
PER = {"s": 1.0, "m": 60.0, "h": 3600.0}

_NUMBER = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_SIZE_OF = {name.lower(): size for name, size in SIZES.items()}


def parse_bytes(text: str) -> int:
    """Parse a size such as `"64MiB"` or `"64 MB"`; a bare number is bytes."""
    number, unit = _split(text, "size", "64MiB")
    scale = _SIZE_OF.get(unit.lower() or "b")
    if scale is None:
        raise UsageError(f"{unit!r} is not a unit of size", hint=f"use one of {', '.join(SIZES)}")
    value = number * scale
    if value != int(value):
        raise UsageError(f"{text!r} is not a whole number of bytes")
    return int(value)


def parse_share(text: str) -> float:
    """Parse a part of something such as `"10%"`."""
    number, rest = _split(text.strip().removesuffix("%"), "part", "10%")
    if rest:
        raise UsageError(f"{text!r} is not a part", hint='write it like "10%"')
    return number / 100


def parse_seconds(text: str) -> float:
    """Parse a duration such as `"5s"`, `"1.5h"` or `"1h30m"`; a bare number is seconds."""
    parts = _NUMBER.findall(text)
    if not parts or _NUMBER.sub("", text).strip():
        raise UsageError(f"{text!r} is not a duration", hint='write it like "5s", "1h30m" or "7d"')
    total = 0.0
    for number, unit in parts:
        if unit not in SECONDS and not (unit == "" and len(parts) == 1):
            raise UsageError(f"{unit!r} is not a unit of time", hint=f"use one of {', '.join(SECONDS)}")
        total += float(number) * SECONDS[unit or "s"]
    return total


def parse_rate(text: str) -> float:
    """Parse a rate such as `"2000/s"` or `"90/m"`; a bare number is per second."""
    number, slash, unit = text.partition("/")
    scale = PER.get(unit.strip() if slash else "s")
    if scale is None:
        raise UsageError(f"{unit!r} is not a unit of a rate", hint="use one of /s, /m, /h")
    value, rest = _split(number, "rate", "2000/s")
    if rest:
        raise UsageError(f"{text!r} is not a rate", hint='write it like "2000/s"')
    return value / scale


def format_bytes(value: int) -> str:
    """Format a size in the largest binary unit that is exact."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value and value % SIZES[unit] == 0:
            return f"{value // SIZES[unit]}{unit}"
    return f"{value}B"


def say_bytes(value: int) -> str:
    """Format a size for people, rounded to three digits."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value >= SIZES[unit]:
            return f"{value / SIZES[unit]:.3g} {unit}"
    return f"{value} bytes"


def format_share(value: float) -> str:
    """Format a part of something in percent."""
    return f"{value * 100:.15g}%"


def format_seconds(value: float) -> str:
    """Format a duration in the largest unit that is exact."""
    for unit in ("d", "h", "m"):
        if value and value % SECONDS[unit] == 0:
            return f"{int(value / SECONDS[unit])}{unit}"
    if value == int(value):
        return f"{int(value)}s"
    return f"{value * 1000:.15g}ms" if value < 1 else f"{value:.15g}s"


def format_rate(value: float) -> str:
    """Format a rate per second."""
    return f"{value:.15g}/s"


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is not a {what}", hint=f'write it like "{example}"')
    digits = found[1]
    return (float(digits) if "." in digits else int(digits)), found[2]
