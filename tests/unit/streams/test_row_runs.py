"""Rows of plain writes, as SQLite is given them, on both twins."""

import sqlite3

import pytest
from tests.twins import TWINS, Twin

VALUES = [b"", None, b"\0", b"a value", bytes(300)]


@pytest.mark.parametrize("twin", TWINS, ids=repr)
@pytest.mark.parametrize("key", [None, "k"])
def test_values_are_kept_as_they_are_also_empty_and_absent_ones(twin: Twin, key: str | None) -> None:
    records = [
        (at, twin.appended(at, 1, 1, at - 1, at + 1, at + 1, 0, value, key and f"{key}{at}", None))
        for at, value in enumerate(VALUES)
    ]
    rows: list[object] = []
    take, width = (twin.message_run, 4) if key is None else (twin.entry_run, 5)
    assert take(records, 0, rows, []) == len(records)
    with sqlite3.connect(":memory:") as database:
        database.execute(f"CREATE TABLE t ({', '.join(f'c{k}' for k in range(width))})")
        database.execute(f"INSERT INTO t VALUES {', '.join(['(' + ', '.join('?' * width) + ')'] * len(VALUES))}", rows)
        found = database.execute(f"SELECT c{width - 1}, typeof(c{width - 1}) FROM t").fetchall()
    database.close()
    assert found == [(value, "null" if value is None else "blob") for value in VALUES]
