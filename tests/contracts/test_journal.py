"""The journal of a state shard, wherever it commits to: one body over every implementation."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.buckets import BUCKETS
from tests.postgres_server import new_schema, shared_server
from tests.state_shards import JournalDisk, MemoryJournal

from everlog.base import EverlogError, Fenced, StorageError, Unavailable
from everlog.commitlog import LogSettings
from everlog.streams import Journal, LocalJournal
from everlog.tiering import GroupJournal, ObjectJournal, PostgresJournal, make_journal_tables

Opener = Callable[[int], Journal]  # by epoch; one that is opened later replaces the ones before


def in_bucket(kind: str) -> Callable[[Path], Iterator[Opener]]:
    def opened(tmp_path: Path) -> Iterator[Opener]:
        with BUCKETS[kind](tmp_path) as opener:
            yield lambda epoch: ObjectJournal(opener(), "state/shard-0", epoch, group_s=0.001)

    return opened


def in_test_double(tmp_path: Path) -> Iterator[Opener]:
    """The one that tests of state shards use has to keep to the contract too."""
    disk = JournalDisk()

    def open_at(epoch: int) -> MemoryJournal:
        disk.epoch = epoch - 1
        return MemoryJournal(disk)

    yield open_at


def in_log(tmp_path: Path) -> Iterator[Opener]:
    settings = LogSettings(segment_bytes=2000, retention_bytes=0, merge_below=0)
    yield lambda epoch: LocalJournal.open(str(tmp_path / "journal"), settings=settings, epoch=epoch)


def in_postgres(tmp_path: Path) -> Iterator[Opener]:
    url, schema = shared_server().url, new_schema()
    make_journal_tables(url, schema)
    yield lambda epoch: PostgresJournal(url, "shard-0", epoch, schema=schema)


SHARED = {"postgres": in_postgres} | {kind: in_bucket(kind) for kind in BUCKETS}
REAL = {"local": in_log} | SHARED
IMPLEMENTATIONS = {"test double": in_test_double} | REAL


class Opened:
    """Opens journals one after the other and closes them all in the end."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._journals: list[Journal] = []

    def __call__(self, epoch: int) -> Journal:
        self._journals.append(self._opener(epoch))
        return self._journals[-1]

    def close(self) -> None:
        for journal in self._journals:
            journal.close()


@pytest.fixture(params=IMPLEMENTATIONS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    for opener in IMPLEMENTATIONS[request.param](tmp_path):
        journals = Opened(opener)
        yield journals
        journals.close()


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens journals that other processes may open too: a lock is no fence there."""
    for opener in SHARED[request.param](tmp_path):
        journals = Opened(opener)
        yield journals
        journals.close()


def commit(journal: Journal) -> int:
    """Commit what was appended and return the committed end; raise what the journal fails with."""
    answers: list[int | EverlogError] = []
    told = threading.Event()

    def answer(what: int | EverlogError) -> None:
        answers.append(what)
        told.set()

    journal.commit(answer, answer)
    assert told.wait(20)
    (what,) = answers
    if isinstance(what, EverlogError):
        raise what
    return what


def effects(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    return [(f"stream/{number % 3}", b"effect %d" % number) for number in range(first, first + count)]


def test_a_new_journal_is_empty(opened: Opened) -> None:
    journal = opened(1)
    assert (journal.epoch, journal.start, journal.end, journal.committed) == (1, 0, 0, 0)
    assert list(journal.read(0, 10)) == []
    assert commit(journal) == 0


def test_what_was_committed_is_read_back_in_order(opened: Opened) -> None:
    journal = opened(1)
    assert journal.append(effects(5)) == 0
    assert journal.append(effects(2, 5)) == 5
    assert journal.end == 7
    assert commit(journal) == 7 == journal.committed
    assert list(journal.read(0, 7)) == [(n, name, effect) for n, (name, effect) in enumerate(effects(7))]
    assert [position for position, _, _ in journal.read(2, 5)] == [2, 3, 4]
    assert [position for position, _, _ in journal.read(0, 7, "stream/1")] == [1, 4]


def test_effects_of_any_bytes_and_names_of_any_letters(opened: Opened) -> None:
    journal = opened(1)
    records = [("ströme/日本", b""), ("x", bytes(range(256)) * 5000), ("ströme/日本", b"\x00")]
    journal.append(records)
    commit(journal)
    assert [(name, effect) for _, name, effect in journal.read(0, 3)] == records


def test_the_next_owner_goes_on_where_the_last_one_ended(opened: Opened) -> None:
    first = opened(3)
    for number in range(4):
        first.append(effects(2, 2 * number))
        commit(first)
    first.close()
    second = opened(4)
    assert second.end == second.committed == 8
    assert second.append(effects(1, 8)) == 8
    assert commit(second) == 9
    assert [effect for _, _, effect in second.read(0, 9)] == [effect for _, effect in effects(9)]


def test_an_owner_that_was_replaced_commits_nothing_more(shared: Opened) -> None:
    first = shared(1)
    first.append(effects(3))
    commit(first)
    first.append(effects(1, 3))
    second = shared(2)
    assert second.end == 3
    with pytest.raises(Fenced):
        commit(first)
    with pytest.raises(Fenced):
        first.append(effects(1))
    with pytest.raises(Fenced):
        commit(first)
    second.append(effects(1, 10))
    assert commit(second) == 4
    assert [effect for _, _, effect in second.read(3, 4)] == [b"effect 10"]


@pytest.mark.parametrize("epoch", [2, 1])
def test_an_epoch_that_is_not_new_opens_nothing(shared: Opened, epoch: int) -> None:
    shared(2)
    with pytest.raises(Fenced):
        shared(epoch)


def test_close_commits_what_was_appended(opened: Opened) -> None:
    first = opened(1)
    first.append(effects(3))
    first.close()
    assert opened(2).end == 3


@pytest.mark.parametrize("kind", REAL)
def test_a_closed_journal_takes_nothing(kind: str, tmp_path: Path) -> None:
    for opener in REAL[kind](tmp_path):
        journal = opener(1)
        journal.close()
        with pytest.raises(Unavailable):
            journal.append(effects(1))


def test_many_names_are_known_apart(opened: Opened) -> None:
    journal = opened(1)
    journal.append([(f"s/{number}", b"%d" % number) for number in range(3000)])
    commit(journal)
    assert [effect for _, _, effect in journal.read(0, 3000)] == [b"%d" % number for number in range(3000)]
    assert list(journal.read(0, 3000, "s/2999")) == [(2999, "s/2999", b"2999")]


def test_commits_are_answered_in_the_order_they_were_asked_for(opened: Opened) -> None:
    journal = opened(1)
    answers: list[tuple[int, int]] = []
    told = threading.Event()

    def answer(number: int, end: int) -> None:
        answers.append((number, end))
        if len(answers) == 30:
            told.set()

    for number in range(30):
        journal.append(effects(1, number))
        journal.commit(lambda end, number=number: answer(number, end), lambda error: told.set())
    assert told.wait(20)
    assert [number for number, _ in answers] == list(range(30))
    assert all(end > number for number, end in answers)


def test_trimmed_records_are_gone_for_good_and_the_others_stay(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.tiering.numbered.MILESTONES", (8, 64, 512))
    journal = opened(1)
    for number in range(90):
        journal.append(effects(1, number))
        commit(journal)
    if isinstance(journal, GroupJournal):
        journal.allow_trim(80)
    journal.trim(80)
    for number in range(90, 110):
        journal.append(effects(1, number))
        commit(journal)
    assert 0 < journal.start <= 80
    assert [position for position, _, _ in journal.read(80, 110)] == list(range(80, 110))
    with pytest.raises(StorageError):
        list(journal.read(journal.start - 1, 110))
    start = journal.start
    journal.close()
    second = opened(2)
    assert second.start == start
    assert second.end == 110
    assert [effect for _, _, effect in second.read(start, 110)] == [effect for _, effect in effects(110 - start, start)]


def test_reads_do_not_see_what_is_not_committed(opened: Opened) -> None:
    journal = opened(1)
    journal.append(effects(2))
    commit(journal)
    journal.append(effects(2, 2))
    assert [position for position, _, _ in journal.read(0, 4)] in ([0, 1], [0, 1, 2, 3])
    assert journal.committed == 2


def test_what_is_in_no_pack_is_not_trimmed(shared: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.tiering.numbered.MILESTONES", (4, 16, 64))
    journal = shared(1)
    assert isinstance(journal, GroupJournal)
    for number in range(10):
        journal.append(effects(1, number))
        commit(journal)
        journal.trim(number)
    assert journal.start == 0
    journal.allow_trim(5)
    for number in range(10, 20):
        journal.append(effects(1, number))
        commit(journal)
        journal.trim(number)
    assert journal.start == 5
    assert [position for position, _, _ in journal.read(5, 20)] == list(range(5, 20))
