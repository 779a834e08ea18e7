"""What peers have chosen never drives the operator's terminal; a program that reads our output gets every byte."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.shard_logs import columns_of

from everlog.base import TopicTable
from everlog.cli import main
from everlog.cli.client.message_format import formatter
from everlog.cli.visible import visible, visible_line
from everlog.commitlog import LogSettings
from everlog.mqtt import Message
from everlog.sessions import Changes, SessionRow, SqliteTables
from everlog.store import LogStore

EVIL_TOPIC = "a\x1b[2J/\x9bm"
EVIL_PAYLOAD = b"\x1b]0;title\x07 \xff\x9b end\r"


def test_controls_are_shown_and_text_stays() -> None:
    assert visible("grün\t✓\nnext".encode()) == "grün\t✓\nnext".encode()
    assert visible(EVIL_PAYLOAD) == rb"\x1b]0;title\x07 \xff\x9b end\x0d"
    assert visible("\u202eabc\x9b".encode()) == rb"\u202eabc\x9b"
    assert visible_line("a\nb\udc80") == r"a\x0ab\udc80"


def test_a_format_keeps_its_own_escapes() -> None:
    form = formatter(verbose=False, template=r"\e[1m%t\e[0m %x", newline=False, show=visible)
    assert form(Message(b"a\x1bb", b"\x1b", 0, False, 0, b"")) == b"\x1b[1ma\\x1bb\x1b[0m 1b"


def test_json_has_no_controls_wherever_it_goes() -> None:
    form = formatter(verbose=False, template="%j", newline=False, show=bytes)
    shown = form(Message(EVIL_TOPIC.encode(), EVIL_PAYLOAD, 0, False, 0, b""))
    assert not any(code < 0x20 for code in shown)
    assert "\x9b" not in shown.decode()
    assert json.loads(shown)["topic"] == EVIL_TOPIC


@pytest.fixture
def data(tmp_path: Path) -> Path:
    store = LogStore.open(str(tmp_path), LogSettings(durability="flush"))
    table = TopicTable()
    store.append(columns_of([(EVIL_TOPIC.encode(), EVIL_PAYLOAD)], table), 0, 1, 1, table)
    store.commit()
    store.shards[0].wait_committed(1, 10)
    store.close()
    tables = SqliteTables(tmp_path / "sessions.db")
    tables.apply(Changes(rows=(SessionRow("c\x1b[31m\n[red]", None, 5, 60, 1, None),)), durable=True)
    tables.close()
    return tmp_path


def on_a_terminal(*words: object) -> bytes:
    """What a command writes to a terminal."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "everlog", *map(str, words)]
    process = subprocess.Popen(command, stdout=slave, stderr=subprocess.DEVNULL, env=environment)
    os.close(slave)
    shown = b""
    try:
        while more := os.read(master, 65536):
            shown += more
    except OSError:  # how the end of a terminal is told
        pass
    os.close(master)
    assert process.wait(60) == 0
    return shown


def test_a_terminal_gets_no_controls_of_peers(data: Path) -> None:
    for words in (("log", "dump", data), ("log", "topics", data), ("replay", "--data", data, "#", "-v", "--quiet")):
        shown = on_a_terminal(*words)
        assert rb"a\x1b[2J/\x9bm" in shown
        assert b"\x1b[2J" not in shown
        assert b"\x1b]0;" not in shown
    shown = on_a_terminal("sessions", "list", data)
    assert rb"\x1b[31m\x0a[red]" in shown
    assert b"\x1b[31m" not in shown


def test_a_program_gets_the_payload_as_it_was(data: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["log", "dump", str(data), "-F", "%p"]) == 0
    assert capsysbinary.readouterr().out == EVIL_PAYLOAD + b"\n"
