"""What is printed of messages, entries and changes: for people, or one JSON object a line."""

import base64
import codecs
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from everlog.base import UsageError
from everlog.cli.visible import visible, visible_json, visible_line
from everlog.client import CaughtUp, Entry, Item, StoredMessage
from everlog.streams import AllDeleted, Configured, FeedReset, KeysDeleted, KeySet, MessagesDeleted, MessageSet

_TEXT = codecs.getincrementaldecoder("utf-8")
_YEAR_10000_US = 253_402_300_800_000_000  # later times have no date here
_PREVIEW = 200  # characters of a value in a line for people


def print_json(members: dict[str, Any]) -> None:
    """Print one object on a line."""
    print(visible_json(json.dumps(members, ensure_ascii=False, separators=(",", ":"))), flush=True)


def print_line(*texts: str, flush: bool = True) -> None:
    """Print texts with tabs between them; on a terminal without the control characters of whoever wrote them."""
    print("\t".join(map(visible_line, texts) if sys.stdout.isatty() else texts), flush=flush)


def print_value(value: bytes | None) -> None:
    """Print a value as it is; on a terminal with an end of line, and without its control characters."""
    sys.stdout.flush()
    if sys.stdout.isatty():
        shown = visible(value or b"")
        value = shown if not shown or shown.endswith(b"\n") else shown + b"\n"
    sys.stdout.buffer.write(value or b"")
    sys.stdout.buffer.flush()


def as_members(found: StoredMessage | Entry) -> dict[str, Any]:
    """Return a message or an entry as members of an object; what is no text is in base64."""
    members: dict[str, Any] = {}
    if isinstance(found, Entry):
        members |= {"key": found.key, "revision": found.revision}
    else:
        members["seq"] = found.seq
    members["time"] = show_time(found.time_us)
    members |= _value(found.value)
    if found.headers:
        members["headers"] = found.headers
    if found.timestamp is not None:
        members["timestamp"] = found.timestamp
    if found.expires_us:
        members["expires"] = show_time(found.expires_us)
    return members


def as_line(found: StoredMessage | Entry) -> str:
    """Return a message or an entry as a line for people."""
    place = f"{found.key} (revision {found.revision})" if isinstance(found, Entry) else str(found.seq)
    return f"{show_time(found.time_us)}  {place}  {preview(found.value)}"


def preview(value: bytes | None) -> str:
    """Return a value as a short text."""
    if value is None:
        return "(no value)"
    try:
        text = _TEXT().decode(value[: 4 * _PREVIEW], len(value) <= 4 * _PREVIEW)  # the last character may be cut
    except UnicodeDecodeError:
        return f"({len(value):,} bytes)"
    text = text.replace("\n", "⏎")
    return text if len(text) <= _PREVIEW else f"{text[:_PREVIEW]}… ({len(value):,} bytes)"


def print_item(item: Item, as_json: bool) -> None:
    """Print what a feed told."""
    if as_json:
        print_json(_item_members(item))
    elif isinstance(item, MessageSet):
        print_line(as_line(item.message))
    elif isinstance(item, KeySet):
        print_line(as_line(item.entry))
    else:
        print_line(f"-- {_item_words(item)}")


def _item_words(item: Item) -> str:
    if isinstance(item, MessagesDeleted):
        seqs = ", ".join(str(one) if one == last else f"{one} to {last}" for one, last in item.ranges)
        return f"{item.reason}: {seqs} deleted"
    if isinstance(item, KeysDeleted):
        return f"{item.reason}: {', '.join(item.keys)} deleted"
    if isinstance(item, AllDeleted):
        return "removed" if item.is_removed else "all deleted"
    if isinstance(item, FeedReset):
        return f"begins anew ({item.reason})"
    if isinstance(item, CaughtUp):
        return "caught up"
    return "configured" if isinstance(item, Configured) else "a new epoch"


def _item_members(item: Item) -> dict[str, Any]:
    if isinstance(item, MessageSet):
        return {"event": "set", **as_members(item.message)}
    if isinstance(item, KeySet):
        return {"event": "set", **as_members(item.entry)}
    if isinstance(item, MessagesDeleted):
        return {"event": "deleted", "ranges": item.ranges, "reason": item.reason}
    if isinstance(item, KeysDeleted):
        return {"event": "deleted", "keys": item.keys, "reason": item.reason}
    if isinstance(item, AllDeleted):
        return {"event": "removed" if item.is_removed else "all_deleted"}
    if isinstance(item, FeedReset):
        return {"event": "reset", "reason": item.reason}
    if isinstance(item, CaughtUp):
        return {"event": "caught_up", "last_seq": item.last_seq}
    return {"event": "configured" if isinstance(item, Configured) else "epoch"}


def read_value(text: str | None, file: Path | None) -> bytes:
    """Return the value that a command line gives: a text, a file, or standard input."""
    if (text is None) == (file is None):
        raise UsageError("no value, or two of them", hint="give a VALUE, or -f FILE; -f - is standard input")
    if text is not None:
        return text.encode()
    assert file is not None
    return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()


def show_time(time_us: int) -> str:
    """Return a time as RFC 3339 in UTC, to the millisecond."""
    if not 0 <= time_us < _YEAR_10000_US:
        return f"{time_us / 1_000_000:.0f} s after 1970"
    at = datetime.fromtimestamp(time_us / 1_000_000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _value(value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}
