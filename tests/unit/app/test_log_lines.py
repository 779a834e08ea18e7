"""The lines of the log, for people and as JSON."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from everlog.app.log_lines import set_up_logging
from everlog.broker import event

LOG = logging.getLogger("everlog.test")


@pytest.fixture(autouse=True)
def _leave_logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_has_time_level_event_and_fields() -> None:
    out = io.StringIO()
    set_up_logging("info", "text", out)
    event(LOG, "connected", client="c", peer="127.0.0.1:1", user=None)
    LOG.debug("not wanted")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO connected client=c peer=127\.0\.0\.1:1\n", out.getvalue()
    )


def test_json_has_an_object_a_line() -> None:
    out = io.StringIO()
    set_up_logging("debug", "json", out)
    event(LOG, "connected", client="ü\n", version=5, resumed=False, user=None)
    LOG.debug("plain %s", "words")
    first, second = map(json.loads, out.getvalue().splitlines())
    del first["time"]
    assert first == {
        "level": "info",
        "logger": "everlog.test",
        "event": "connected",
        "client": "ü\n",
        "version": 5,
        "resumed": False,
    }
    assert second["event"] == "plain words"


@pytest.mark.parametrize("format", ["text", "json"])
def test_an_exception_is_shown(format: str) -> None:
    out = io.StringIO()
    set_up_logging("info", format, out)
    try:
        raise ValueError("boom")
    except ValueError:
        LOG.exception("it failed")
    assert "ValueError: boom" in out.getvalue()
    assert format == "text" or json.loads(out.getvalue())["event"] == "it failed"
