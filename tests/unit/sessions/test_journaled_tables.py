"""The journal of the session tables: what a crash leaves of it counts, and nothing else does."""

import contextlib
import copy
import errno
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.memory_tables import MemoryTables
from tests.simulated_disk import SimulatedCrash, SimulatedDisk

from everlog.base import StorageError
from everlog.sessions import (
    Changes,
    Cursor,
    GroupRow,
    JournaledTables,
    RetainedNames,
    RetainedRow,
    SessionRow,
    SessionTables,
    SqliteTables,
    SubscriptionRow,
    WillRow,
    change_journal,
    check_tables,
    journaled_tables,
    saved_tables,
)
from everlog.sessions.change_journal import ChangeJournal, read_journal, records_after
from everlog.sessions.merged_changes import MergedChanges

ANNE = Changes(rows=(SessionRow("anne"),), routed=(7,), alive_us=9)
BERT = Changes(rows=(SessionRow("bert"),))


def contents(tables: SessionTables) -> tuple[Any, ...]:
    found = tables.load()
    lists = (found.sessions, found.retained, found.groups, found.retained_names, found.wills)
    return found.routed, found.alive_us, found.retained_at, *map(list, lists)


def names(tables: SessionTables) -> list[str]:
    return [one.row.client_id for one in tables.load().sessions]


def begun(path: Path) -> JournaledTables:
    """Tables whose journal takes batches."""
    tables = JournaledTables(path)
    tables.apply(Changes(alive_us=1), durable=True)
    return tables


def stored(tables: JournaledTables, changes: Changes) -> None:
    """As the broker does: at once, or by its thread if that takes longer."""
    if not tables.begin(changes):
        tables.apply(changes, durable=True)


def copied(path: Path, to: Path) -> Path:
    """What a process that is killed here leaves."""
    to.mkdir()
    for one in path.parent.glob("sessions*"):
        shutil.copy(one, to / one.name)
    return to / path.name


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(journaled_tables, "_SLOW_S", 60.0)
    monkeypatch.setattr(journaled_tables, "_PATIENCE_NS", 60_000_000_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "sessions.db"


def test_what_was_begun_is_known_after_a_kill_though_the_tables_do_not_have_it(path: Path, tmp_path: Path) -> None:
    with closing(begun(path)) as tables:
        stored(tables, ANNE)
        stored(tables, BERT)
        left = copied(path, tmp_path / "left")
        with closing(SqliteTables(copied(path, tmp_path / "alone"))) as alone:
            assert names(alone) == []
    with closing(JournaledTables(left)) as found:
        assert names(found) == ["anne", "bert"]
        assert found.load().routed == (7,)
    with closing(SqliteTables(left)) as sqlite:
        assert names(sqlite) == ["anne", "bert"], "a broker that stops leaves all in the tables"


def test_the_tables_follow_without_those_who_store_meanwhile(path: Path, tmp_path: Path) -> None:
    with closing(begun(path)) as tables:
        stored(tables, ANNE)
        assert tables.take_behind()
        stored(tables, BERT)  # while the other thread is about to follow
        tables.follow()
        assert names(tables) == ["anne"]
        with closing(JournaledTables(copied(path, tmp_path / "left"))) as found:
            assert names(found) == ["anne", "bert"]
        assert tables.take_behind()
        tables.follow()
        assert not tables.take_behind()
        assert names(tables) == ["anne", "bert"]


def test_batches_that_nobody_waits_for_come_before_those_behind_them(path: Path, tmp_path: Path) -> None:
    with closing(begun(path)) as tables:
        tables.apply(ANNE)
        stored(tables, Changes(ended=("anne",), rows=BERT.rows))
        with closing(JournaledTables(copied(path, tmp_path / "left"))) as found:
            assert names(found) == ["bert"]


def test_a_torn_tail_is_what_was_not_stored(path: Path, tmp_path: Path) -> None:
    with closing(begun(path)) as tables:
        stored(tables, ANNE)
        left = copied(path, tmp_path / "left")
        before = left.with_suffix(".journal").read_bytes()
        stored(tables, BERT)
        after = copied(path, tmp_path / "after").with_suffix(".journal").read_bytes()
    end = max(k for k in range(len(after)) if before[k] != after[k])
    for cut in (1, 9, 17, 30):
        torn = bytearray(after)
        torn[end - cut : end + 1] = bytes(cut + 1)
        folder = tmp_path / f"torn-{cut}"
        folder.mkdir()
        shutil.copy(left, folder / "sessions.db")
        shutil.copy(f"{left}-wal", folder / "sessions.db-wal")
        (folder / "sessions.journal").write_bytes(torn)
        assert check_tables(folder / "sessions.db").damage == []
        with closing(JournaledTables(folder / "sessions.db")) as found:
            assert names(found) == ["anne"]
            stored(found, BERT)
            with closing(JournaledTables(copied(folder / "sessions.db", tmp_path / f"again-{cut}"))) as again:
                assert names(again) == ["anne", "bert"]


def test_what_lay_behind_a_torn_record_never_comes_back(path: Path, tmp_path: Path) -> None:
    with closing(begun(path)) as tables:
        for name in ("anne", "torn", "gone"):
            tables.apply(Changes(rows=(SessionRow(name),)))
        left = copied(path, tmp_path / "left")
    journal = left.with_suffix(".journal")
    data = bytearray(journal.read_bytes())
    data[data.index(b"torn")] ^= 1
    journal.write_bytes(data)
    with closing(JournaledTables(left)) as found:
        assert names(found) == ["anne"]
        found._journal.restart(found._number)
        for name in ("1111", "2222"):  # as long as the first two
            found.apply(Changes(rows=(SessionRow(name),)))
        with closing(JournaledTables(copied(left, tmp_path / "again"))) as again:
            assert names(again) == ["1111", "2222", "anne"]


def test_a_record_that_was_synced_and_cannot_be_read_is_damage_that_is_left_alone(path: Path, tmp_path: Path) -> None:
    with closing(begun(path)) as tables:
        for number in range(5):
            stored(tables, Changes(rows=(SessionRow(f"client {number}"),)))
        left = copied(path, tmp_path / "left")
    journal = left.with_suffix(".journal")
    data = bytearray(journal.read_bytes())
    data[data.index(b"client 1")] ^= 1
    journal.write_bytes(data)
    with pytest.raises(StorageError, match="damaged") as error:
        JournaledTables(left)
    assert error.value.hint
    with pytest.raises(StorageError, match="damaged"):
        saved_tables(left)
    assert journal.read_bytes() == data
    (damage,) = check_tables(left).damage
    assert "sessions.journal" in damage


def test_the_journal_of_other_tables_is_refused(path: Path, tmp_path: Path) -> None:
    with closing(begun(path)) as tables:
        stored(tables, ANNE)
        left = copied(path, tmp_path / "left")
    for name in ("sessions.db", "sessions.db-wal"):
        left.with_name(name).unlink()
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "sessions.db"
    for _ in range(5):  # their numbers begin anywhere
        begun(other).close()
        shutil.copy(left.with_suffix(".journal"), other.with_suffix(".journal"))
        with contextlib.suppress(StorageError):
            JournaledTables(other).close()
        with closing(SqliteTables(other)) as sqlite:
            assert names(sqlite) == []
        for one in other.parent.glob("sessions*"):
            one.unlink()


def test_who_looks_on_sees_what_only_the_journal_has_and_changes_nothing(path: Path, tmp_path: Path) -> None:
    with closing(begun(path)) as tables:
        stored(tables, ANNE)
        before = path.with_suffix(".journal").read_bytes()
        with closing(saved_tables(path)) as seen:
            assert names(seen) == ["anne"]
        assert path.with_suffix(".journal").read_bytes() == before
        assert names(tables) == []
        assert check_tables(path).damage == []
        assert check_tables(path).rows == 1
        stored(tables, BERT)
        with closing(JournaledTables(copied(path, tmp_path / "left"))) as found:
            assert names(found) == ["anne", "bert"]


def test_a_full_journal_begins_anew_once_the_tables_have_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_journal, "FILE_BYTES", 4096)
    with closing(begun(path)) as tables:
        for number in range(200):
            stored(tables, Changes(rows=(SessionRow(f"{number:03}"),)))
            if number % 37 == 0:
                left = copied(path, tmp_path / f"left-{number}")
                with closing(JournaledTables(left)) as found:
                    assert names(found) == [f"{one:03}" for one in range(number + 1)]
        assert path.with_suffix(".journal").stat().st_size == 4096


def test_a_batch_too_large_for_the_journal_is_in_the_tables_with_all_before_it(path: Path) -> None:
    with closing(begun(path)) as tables:
        stored(tables, ANNE)
        large = Changes(retained=(RetainedRow("t", bytes(change_journal.RECORD_BYTES)),), rows=BERT.rows)
        assert not tables.begin(large)
        tables.apply(large)
        assert names(tables) == ["anne", "bert"]


def test_a_journal_whose_sync_fails_is_replaced_and_the_tables_have_all(tmp_path: Path) -> None:
    disk = SimulatedDisk(Random(1))
    with closing(JournaledTables(tmp_path / "sessions.db", disk=disk)) as tables:
        tables.apply(Changes(alive_us=1), durable=True)
        stored(tables, ANNE)
        disk.fault = lambda kind, path: errno.EIO if kind == "sync" else None
        assert not tables.begin(BERT)
        tables.apply(BERT, durable=True)
        assert names(tables) == ["anne", "bert"]
        stored(tables, Changes(ended=("anne",)))
        assert names(tables) == ["bert"], "there is no journal to be had"
        made: list[str] = []
        disk.fault = lambda kind, path: made.append(kind)
        tables._again_at = 0.0
        stored(tables, ANNE)
        assert {"unlink", "create"} <= {*made}, "nothing more is written where a sync has failed"
        assert tables.begin(BERT)


def test_tables_that_fail_have_nothing_go_to_the_journal_that_builds_on_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(begun(path)) as tables:
        stored(tables, ANNE)
        large = Changes(retained=(RetainedRow("t", bytes(change_journal.RECORD_BYTES)),))
        with monkeypatch.context() as patched:
            patched.setattr(SqliteTables, "apply", _fails)
            with pytest.raises(StorageError):
                tables.apply(large)
            assert not tables.begin(BERT)
            with pytest.raises(StorageError):
                tables.apply(BERT, durable=True)
            assert tables.take_behind()
            with pytest.raises(StorageError):
                tables.follow()
        with closing(JournaledTables(copied(path, tmp_path / "left"))) as found:
            assert names(found) == ["anne"]
        tables.apply(BERT, durable=True)
        assert names(tables) == ["anne", "bert"]


def _fails(*_: object) -> None:
    raise StorageError("no room")


def test_a_slow_disk_has_nobody_wait_in_the_thread_that_asks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(begun(path)) as tables:
        monkeypatch.setattr(journaled_tables, "_SLOW_S", 0.001)
        times = iter(range(100))
        monkeypatch.setattr("everlog.sessions.journaled_tables.perf_counter", lambda: float(next(times)))
        stored(tables, ANNE)  # a second
        assert not tables.begin(BERT)
        monkeypatch.setattr("everlog.sessions.journaled_tables.perf_counter", lambda: 0.0)
        for _ in range(100):  # quick again
            tables.apply(BERT, durable=True)
        assert tables.begin(BERT)


def random_changes(random: Random, step: int) -> Changes:
    """A batch about a few names, so that later ones undo what earlier ones did."""

    def some(of: list[Any], most: int = 2) -> list[Any]:
        return random.sample(of, random.randrange(min(most, len(of)) + 1))

    clients, texts, topics, groups = list("abcd"), ["x", "y/#"], ["t", "u"], [("g", "x"), ("h", "y")]
    present = some(clients, 4)
    named, unnamed = random.choice([((1, 5), ()), ((), (1, 5)), ((5,), (1,)), ((), ())])
    return Changes(
        ended=tuple(some(clients, 1)),
        rows=tuple(SessionRow(client, away_us=step) for client in present),
        unsubscribed=tuple((client, random.choice(texts)) for client in some(present)),
        subscribed=tuple((client, SubscriptionRow(random.choice(texts), step % 3)) for client in some(present)),
        cursors=tuple((client, Cursor(next_id=step + 1)) for client in some(present)),
        retained=tuple(RetainedRow(topic, random.choice([None, b"%d" % step]), step % 2) for topic in some(topics)),
        retained_names=tuple(RetainedNames(first, step, b"") for first in named),
        ended_names=unnamed,
        retained_at=random.choice([None, (step,)]),
        ended_groups=tuple(some(groups, 1)),
        groups=tuple(GroupRow(*key, step) for key in some(groups)),
        ended_wills=tuple(some(clients, 1)),
        wills=tuple(WillRow(client, None, b"%d" % step) for client in some(clients, 1)),
        routed=random.choice([None, (step,)]),
        alive_us=step,
    )


@pytest.mark.parametrize("seed", range(20))
def test_batches_as_one_are_what_they_are_one_by_one(seed: int) -> None:
    random = Random(seed)
    one_by_one, at_once, merged = MemoryTables(), MemoryTables(), MergedChanges()
    for step in range(1, 30):
        changes = random_changes(random, step)
        one_by_one.apply(changes)
        merged.add(changes)
        if random.random() < 0.2:
            at_once.apply(merged.changes())
            merged = MergedChanges()
    at_once.apply(merged.changes())
    assert contents(at_once) == contents(one_by_one)


class Machine:
    """A journal on a simulated disk beside a real file, of which a crash leaves any state from the last sync on."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder, self.random = folder, random
        self.disk = SimulatedDisk(random)
        self.disk.leaves = 0.3
        self.path = folder / "sessions.db"
        self.copied = 0
        self.copies: list[Path] = []  # of the tables, since they were synced last

    def start(self) -> JournaledTables:
        for gone in self.folder.glob("sessions*"):
            gone.unlink()
        if self.copies:
            for one in self.random.choice(self.copies).glob("sessions*"):
                shutil.copy(one, self.folder / one.name)
        self.copies = []
        return JournaledTables(self.path, disk=self.disk)

    def keep(self, durable: bool) -> None:
        """Note what the file is now."""
        if durable:
            self.copies.clear()
        self.copied += 1
        self.copies.append(copied(self.path, self.folder / f"copy-{self.copied}").parent)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Machine]]:
    machines: list[Machine] = []
    plain = SqliteTables.apply

    def apply(self: SqliteTables, changes: Changes, durable: bool = False, number: int | None = None) -> Any:
        found = plain(self, changes, durable, number)
        if machines and self.path == machines[0].path:
            machines[0].keep(durable)
        return found

    monkeypatch.setattr(SqliteTables, "apply", apply)
    return machines


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_loses_no_batch_that_was_said_to_be_stored(
    seed: int, tmp_path: Path, watched: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_journal, "FILE_BYTES", 6_000)
    random = Random(seed)
    machine = Machine(tmp_path, random)
    watched.append(machine)
    model = MemoryTables()
    states, durable, step = [contents(model)], 0, 0
    for _ in range(6):
        tables = machine.start()
        found = contents(tables)
        reached = max((k for k, state in enumerate(states) if state == found), default=-1)
        assert reached >= durable, f"{found} is none of what was stored since {states[durable]}"
        model = MemoryTables()
        model.apply(_as_changes(found))
        states, durable = [found], 0
        machine.disk.crash_after = random.randrange(1, 60)
        with contextlib.suppress(SimulatedCrash):
            while True:
                step += 1
                changes = random_changes(random, step)
                model.apply(changes)
                states.append(contents(copy.deepcopy(model)))
                is_durable = random.random() < 0.7
                if not is_durable or not tables.begin(changes):
                    tables.apply(changes, is_durable)
                if is_durable:
                    durable = len(states) - 1
                if random.random() < 0.1 and tables.take_behind():
                    tables.follow()
        tables._tables.close()
        machine.disk.crash()


def _as_changes(found: tuple[Any, ...]) -> Changes:
    routed, alive_us, retained_at, sessions, retained, groups, named, wills = found
    return Changes(
        rows=tuple(one.row for one in sessions),
        subscribed=tuple((one.row.client_id, sub) for one in sessions for sub in one.subscriptions),
        cursors=tuple((one.row.client_id, one.cursor) for one in sessions),
        retained=tuple(retained),
        retained_names=tuple(named),
        retained_at=retained_at,
        groups=tuple(groups),
        wills=tuple(wills),
        routed=routed,
        alive_us=alive_us,
    )


def test_a_journal_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    disk = SimulatedDisk(Random(0))
    journal = ChangeJournal(disk, "sessions.journal")
    journal.restart(5)
    assert records_after("sessions.journal", read_journal(disk, "sessions.journal"), 5) == []
    journal.close()
    data = bytearray(read_journal(disk, "sessions.journal"))
    data[4] = 9
    with pytest.raises(StorageError) as error:
        records_after("sessions.journal", bytes(data), 5)
    assert error.value.hint
