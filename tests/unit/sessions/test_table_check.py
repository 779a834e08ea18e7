"""A check of the session file names the rows that can't be read."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from everlog.sessions import Changes, Cursor, GroupRow, SessionRow, SqliteTables, SubscriptionRow, check_tables


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(SqliteTables(tmp_path / "sessions.db")) as tables:
        changes = Changes(
            rows=(SessionRow("c", expiry_s=60),),
            subscribed=(("c", SubscriptionRow("t", 1)),),
            cursors=(("c", Cursor()),),
            groups=(GroupRow("g", "t"),),
        )
        tables.apply(changes, durable=True)
    return tmp_path / "sessions.db"


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE sessions SET will = x'1003'", "the session of 'c'"),
        ("UPDATE cursors SET inflight = x'01'", "the cursor of 'c'"),
        ("UPDATE cursors SET feeds = x'01'", "what is owed to 'c'"),
        ("UPDATE subscriptions SET since = x'01'", "a subscription of 'c'"),
        ("UPDATE shared_groups SET owed = x'01'", "the shared group 'g'"),
        ("INSERT INTO wills VALUES ('w', NULL, x'20')", "the will of 'w'"),
        ("INSERT INTO retained VALUES ('r', x'20', 0)", "the retained message of 'r'"),
    ],
)
def test_damaged_rows_are_named(path: Path, statement: str, named: str) -> None:
    assert check_tables(path).damage == []
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement).rowcount == 1
    assert [named in line for line in check_tables(path).damage] == [True]


def test_a_damaged_page_is_told(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096 + 8 : 4096 + 200] = b"\xa5" * 192
    path.write_bytes(data)
    assert check_tables(path).damage
    assert path.read_bytes() == data


def test_another_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "other.db").write_bytes(b"no database, but long enough to look at" * 100)
    assert len(check_tables(tmp_path / "other.db").damage) == 1
