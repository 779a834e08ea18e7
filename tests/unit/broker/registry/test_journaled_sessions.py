"""Sessions of a broker whose tables have a journal: nobody waits for SQLite, and a kill loses nothing."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.restarts import Disk, Running, eventually

from everlog.sessions import Changes, JournaledTables, Refused, SqliteTables, journaled_tables, saved_tables


class Sqlite:
    """The writes of the file behind, which can be held up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        self.free.set()
        self.writes = 0
        self._apply = SqliteTables.apply
        monkeypatch.setattr(SqliteTables, "apply", lambda *args: self._write(*args))

    def _write(self, tables: SqliteTables, changes: Changes, durable: bool = False, to: int | None = None) -> Refused:
        if threading.current_thread() is not threading.main_thread():  # not who looks on
            self.writes += 1
            assert self.free.wait(30)
        return self._apply(tables, changes, durable, to)


@pytest.fixture
def sqlite(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sqlite]:
    found = Sqlite(monkeypatch)
    yield found
    found.free.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "sessions.db"


def journaled(path: Path) -> Disk:
    disk = Disk()
    disk.tables = JournaledTables(path)  # type: ignore[assignment]
    return disk


def filters(tables: SqliteTables | JournaledTables) -> dict[str, list[str]]:
    return {one.row.client_id: [sub.filter for sub in one.subscriptions] for one in tables.load().sessions}


@pytest.mark.parametrize("is_slow", [False, True], ids=["at once", "in a thread"])
async def test_nobody_waits_for_sqlite(
    path: Path, sqlite: Sqlite, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    monkeypatch.setattr(journaled_tables, "_SLOW_S", -1.0 if is_slow else 60.0)
    disk = journaled(path)
    async with Running(disk) as running:
        await (await running.client("first")).subscribe("a")
        write_behind = running.broker.write_behind
        assert write_behind is not None
        before = sqlite.writes
        sqlite.free.clear()
        write_behind._followed_s = 0.0
        await eventually(lambda: sqlite.writes > before)  # it is stuck
        client = await running.client("second")
        await client.subscribe("b")
        await client.subscribe("c")
        with closing(saved_tables(path)) as seen:
            assert filters(seen).keys() == {"first", "second"}
        sqlite.free.set()
    disk.tables.close()
    with closing(SqliteTables(path)) as tables:
        assert filters(tables) == {"first": ["a"], "second": ["b", "c"]}


async def test_who_was_answered_is_known_after_a_kill(path: Path, tmp_path: Path) -> None:
    disk = journaled(path)
    (tmp_path / "left").mkdir()
    async with Running(disk) as running:
        for number in range(20):
            client = await running.client(f"client {number:02}")
            await client.subscribe(f"t/{number}")
            if number % 3 == 0:
                await client.leave()
        for one in path.parent.glob("sessions*"):
            shutil.copy(one, tmp_path / "left" / one.name)
    disk.tables.close()
    left = journaled(tmp_path / "left" / "sessions.db")
    assert filters(left.tables) == {f"client {number:02}": [f"t/{number}"] for number in range(20)}
    async with Running(left) as running:
        client = await running.client("client 07")
        assert client.connack.session_present
    left.tables.close()
