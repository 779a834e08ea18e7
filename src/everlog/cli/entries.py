"""Records of the log as people see them: with position, time and topic, printed in one of the formats."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import BinaryIO, NamedTuple

from everlog.cli.formats import as_members, formatter
from everlog.cli.message import Message
from everlog.store import Found


class Entry(NamedTuple):
    """One record."""

    shard: int
    offset: int
    time_us: int
    message: Message


def entries(batches: Iterable[Found]) -> Iterator[Entry]:
    """The records that were found, in order."""
    for found in batches:
        records = found.records
        for row in found.row_numbers():
            offset, time_us, topic, flags, section, payload = records.row(row)
            message = Message(records.table.name(topic), payload, flags >> 1 & 3, bool(flags & 1), 0, section)
            yield Entry(found.shard, offset, time_us, message)


def show_time(time_us: int) -> str:
    """In the machine's own time zone, to the millisecond."""
    local = datetime.fromtimestamp(time_us / 1_000_000, UTC).astimezone()
    return local.isoformat(sep=" ", timespec="milliseconds")[:23]


def writer_of(template: str | None, as_json: bool) -> Callable[[Entry], None]:
    """What prints an entry: time, position, topic and payload unless something else is asked for."""
    out = sys.stdout.buffer
    if template is not None:
        form = formatter(verbose=False, template=template, newline=True)
        return lambda entry: _write(out, form(entry.message, entry.time_us / 1_000_000))
    if as_json:
        return lambda entry: _write(out, _json(entry))
    return lambda entry: _write(
        out,
        f"{show_time(entry.time_us)} {entry.shard}:{entry.offset} ".encode()
        + entry.message.topic
        + b" "
        + entry.message.payload
        + b"\n",
    )


def _json(entry: Entry) -> bytes:
    members = as_members(entry.message, entry.time_us / 1_000_000, payload_as_json=False)
    members = {"position": f"{entry.shard}:{entry.offset}", **members}
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def _write(out: BinaryIO, data: bytes) -> None:
    out.write(data)
    out.flush()
