"""Records of the log as people see them: with position, time and topic, printed in one of the formats."""

import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from everlog.base import QOS_BITS, QOS_SHIFT, RETAIN
from everlog.cli.client.message_format import as_json, formatter
from everlog.mqtt import Message
from everlog.store import Found


class Entry(NamedTuple):
    """A message, and where and when it was kept."""

    shard: int
    offset: int
    time_us: int
    message: Message


def entries(batches: Iterable[Found]) -> Iterator[Entry]:
    """Yield the records that were found, in order."""
    for found in batches:
        records = found.records
        for row in found.row_numbers():
            offset, time_us, topic, flags, section, payload = records.row(row)
            qos = (flags & QOS_BITS) >> QOS_SHIFT
            message = Message(records.table.name(topic), payload, qos, bool(flags & RETAIN), 0, section)
            yield Entry(found.shard, offset, time_us, message)


def show_time(time_us: int) -> str:
    """Return a time in the machine's own time zone, to the millisecond."""
    local = datetime.fromtimestamp(time_us / 1_000_000, UTC).astimezone()
    return local.isoformat(sep=" ", timespec="milliseconds")[:23]


def entry_printer(template: str | None, as_json: bool) -> Callable[[Entry], None]:
    """Return a function that prints an entry: time, position, topic and payload, unless another format is given."""
    if template is not None:
        form = formatter(verbose=False, template=template, newline=True)
        return lambda entry: _print(form(entry.message, entry.time_us * 1000))
    form = formatter(verbose=True, template=None, newline=True)
    return lambda entry: _print(_json(entry) if as_json else _place(entry) + form(entry.message))


def _place(entry: Entry) -> bytes:
    return f"{show_time(entry.time_us)} {entry.shard}:{entry.offset} ".encode()


def _json(entry: Entry) -> bytes:
    place = {"position": f"{entry.shard}:{entry.offset}"}
    return as_json(entry.message, entry.time_us * 1000, place) + b"\n"


def _print(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
