"""Subjects as NATS has them: levels separated by dots, with what NATS gives a meaning written as `%` and two digits."""

import re
from urllib.parse import unquote

_SPECIAL = re.compile(r"[\x00-\x20.*>%\x7f]")


def to_nats(subject: str) -> bytes:
    """Return a subject or pattern in the form that NATS has for it."""
    levels = subject.split("/")
    is_open = levels[-1] == "#"
    text = ".".join(_SPECIAL.sub(_escape, level) for level in (levels[:-1] if is_open else levels))
    return f"{text}.>".encode() if is_open else text.encode()


def from_nats(raw: bytes) -> str:
    """Return a subject of NATS in our form; bytes that are no UTF-8 are replaced, so that nothing matches them."""
    text = raw.decode(errors="replace").replace(".", "/")
    return unquote(text) if "%" in text else text


def _escape(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"
