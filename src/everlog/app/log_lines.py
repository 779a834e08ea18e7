"""The format of the broker's own messages: one line for each event, for people or as JSON."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from everlog.broker import Event


class TextLines(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO connected client=c1 peer=127.0.0.1:5000`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; a traceback follows on lines of its own."""
        line = f"{_time(record)} {record.levelname} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, event, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, whatever the record holds."""
        message: Any = record.msg
        line: dict[str, Any] = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        if isinstance(message, Event):
            line["event"] = message.name
            line.update((key, _plain(value)) for key, value in message.fields.items() if value is not None)
        else:
            line["event"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logging(level: str = "info", format: str = "text", stream: TextIO | None = None) -> None:
    """Write records of this level and above to standard error, or to `stream`, in place of what was set up before."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # no line shows them
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str) else str(value)
