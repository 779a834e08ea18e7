"""Text of clients on the operator's terminal: control characters are shown, never obeyed.

Topics, payloads, client ids and reason strings are chosen by peers, and a terminal obeys escape sequences in what it is
given to show: they move the cursor, hide lines, set the title. Line feeds and tabs stay as they are.
"""

import re

# C0 and C1 controls, DEL, and those that reorder what is written beside them
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LINE_CONTROLS = re.compile(r"[\t\n]")


def visible(data: bytes) -> bytes:
    r"""Return a payload or topic for a terminal: control characters, and what is not UTF-8, become `\xNN`."""
    return _CONTROLS.sub(_shown, data.decode("utf-8", "backslashreplace")).encode()


def visible_line(text: str) -> str:
    """Return a name on one line, without control characters."""
    return _LINE_CONTROLS.sub(_shown, _CONTROLS.sub(_shown, text)).encode("utf-8", "backslashreplace").decode()


def visible_json(text: str) -> str:
    """Return JSON whose strings have no control characters, in JSON's own escapes."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
