"""What the commands for streams and key-value stores print of what others wrote."""

import io
from contextlib import redirect_stdout

import pytest

from everlog.cli.persist import printer
from everlog.client import Entry, StoredMessage
from everlog.streams import KeysDeleted, KeySet, MessageSet

EVIL = "\x1b[2J\x07"


class Terminal(io.TextIOWrapper):
    """An output that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def show_all(value: bytes) -> None:
    printer.print_value(value)
    printer.print_line(EVIL, f"{EVIL}\n")
    printer.print_json({"key": f"{EVIL}\x9b"})
    printer.print_item(MessageSet(StoredMessage(1, 0, value)), False)
    printer.print_item(KeySet(Entry(EVIL, 1, 0, value)), False)
    printer.print_item(KeysDeleted([EVIL], 1), False)


def test_nothing_that_others_wrote_drives_the_terminal() -> None:
    terminal = io.BytesIO()
    with redirect_stdout(Terminal(terminal, write_through=True)):
        show_all(EVIL.encode())
        shown = terminal.getvalue()
    assert not {0x1B, 0x07} & set(shown)
    assert shown.startswith(b"\\x1b[2J\\x07\n")
    assert "\x9b" not in shown.decode()


def test_a_program_gets_every_byte(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer.print_value(b"\x1b\xff")
    printer.print_line(EVIL)
    assert capfdbinary.readouterr().out == b"\x1b\xff" + EVIL.encode() + b"\n"


def test_a_long_text_is_cut_between_characters() -> None:
    assert printer.preview(b"a" + "é".encode() * 1000).startswith("aééé")
    assert printer.preview("é".encode()[:1]) == "(1 bytes)"
    assert printer.preview(b"\xff" * 1000) == "(1,000 bytes)"


@pytest.mark.parametrize("time_us", [-1, 1 << 62])
def test_a_time_without_a_date_is_shown(time_us: int) -> None:
    assert printer.show_time(time_us).endswith("s after 1970")
    assert printer.show_time(0) == "1970-01-01T00:00:00.000Z"
