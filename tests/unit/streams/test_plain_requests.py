"""Plain requests are decided without structs, and just as all others are: same records, same answers, same events."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack
from tests.state_shards import MemoryJournal, Owner, TestClock

from everlog.base import StorageError
from everlog.streams import (
    Answer,
    Asked,
    Call,
    Config,
    Configure,
    Delete,
    DeleteAll,
    ErrorCode,
    Failure,
    Info,
    Kind,
    KvCas,
    KvDelete,
    KvGet,
    KvKeys,
    KvPut,
    Level,
    Message,
    Remove,
    Reply,
    Set,
    ShardSettings,
)

decode_answer = msgpack.Decoder(Answer).decode
SMALL = ShardSettings(apply_rows=6, max_message_bytes=50, value_bytes=20)


class PlainOwner(Owner):
    """An owner that is asked as a server asks it: plain requests first."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.plainly = 0
        self._lists: list[list[Any]] = []
        self.shard.answer_plain(bytes(8), self._take)

    def _take(self, answered: list[Asked]) -> None:
        for one in answered:
            assert int.from_bytes(one.data[8:16], "little") == one.id
            self._lists[one.id - 1].append(decode_answer(one.data[16:]))

    def ask(self, request: Any, **more: Any) -> list[Answer]:
        answers: list[Answer] = []
        self._lists.append(answers)
        call, plain, id = Call(request, **more), self.shard.plain, len(self._lists)
        raw = request.stream.encode()
        may_write = not isinstance(request, KvGet | Info)
        data = b"xyz" + msgpack.encode(call)
        if plain.take(data, 3, request.stream, raw, may_write, Asked("reply", b"", id)):
            self.plainly += 1
            found, plain.answered = plain.answered, []
            self._take(found)
        else:
            self.shard.handle(call, answers.append)
        return answers


VALUES = st.one_of(st.none(), st.binary(max_size=24), st.just(bytes(60)))
IDS = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "ü" * 70, "x" * 129]))
KEYS = st.sampled_from(["k", "l", "ü", ""])
MESSAGES = st.one_of(st.builds(Message, VALUES), st.builds(Message, VALUES, st.just({"h": "1"})))
LEVELS = st.sampled_from([Level.MEMORY, Level.FSYNC, Level.ARCHIVED])
NAMES = st.sampled_from(["s", "t", "kv"])
CONFIGS = st.sampled_from([Config(), Config(max_messages=3), Config(dedup_ids=2), Config(max_rate=2)])
STEPS = st.one_of(
    st.builds(Set, NAMES, MESSAGES, st.none(), IDS, st.just(0), LEVELS),
    st.builds(Set, NAMES, st.builds(Message, VALUES)),
    st.builds(Set, NAMES, MESSAGES, st.one_of(st.none(), st.integers(0, 6)), IDS, st.sampled_from([0, 9])),
    st.builds(KvPut, NAMES, KEYS, MESSAGES, IDS, st.just(0), LEVELS),
    st.builds(KvPut, st.just("kv"), KEYS, st.builds(Message, VALUES)),
    st.builds(KvGet, NAMES, KEYS, st.sampled_from([0, 0, 10])),
    st.builds(KvCas, st.just("kv"), KEYS, MESSAGES, st.integers(0, 4)),
    st.builds(KvDelete, st.just("kv"), KEYS),
    st.builds(Delete, NAMES, st.lists(st.integers(1, 6), max_size=3)),
    st.builds(DeleteAll, NAMES),
    st.builds(Remove, NAMES),
    st.builds(Configure, NAMES, st.sampled_from(Kind), CONFIGS),
    st.builds(Info, NAMES),
    st.sampled_from(["turn", "commit", "tick", "reopen"]),
)


@settings(max_examples=50)
@given(st.lists(STEPS, min_size=5, max_size=40), st.booleans())
def test_plain_requests_are_decided_as_all_others(steps: list[Any], is_manual: bool) -> None:
    with TemporaryDirectory() as folder:
        both: list[Any] = [
            kind(Path(folder, name), clock=TestClock(), manual=is_manual, settings=SMALL)
            for kind, name in ((Owner, "slow"), (PlainOwner, "plain"))
        ]
        answers: list[list[Any]] = [[], []]
        for owner in both:
            owner.follow("s", "kv")
        for step in steps:
            for k in (0, 1):
                if step == "reopen":
                    both[k].turn()
                    events = both[k].events
                    owner = both[k].reopen(manual=is_manual) if k == 0 else _reopened(both[k], is_manual)
                    owner.events = events
                    owner.follow("s", "kv")
                    both[k] = owner
                elif step == "turn":
                    both[k].turn()
                elif step == "commit":
                    both[k].turn()
                    both[k].journal.commit_now()
                    both[k].run_posted()
                elif step == "tick":
                    both[k].tick(1.0)
                else:
                    answers[k].append(both[k].ask(step))
        for owner in both:
            owner.turn()
            owner.journal.commit_now()
            owner.run_posted()
            owner.turn()
        assert both[0].disk.records == both[1].disk.records
        assert answers[0] == answers[1]
        assert both[0].events == both[1].events
        found = [[owner.do(Info(name)) for name in ("s", "t", "kv")] for owner in both]
        assert found[0] == found[1]
        kept = [owner.do(Info("kv")) for owner in both]
        if isinstance(kept[0], Reply) and kept[0].result.kind is Kind.KV:
            entries = [owner.series(KvKeys("kv", with_values=True)) for owner in both]
            assert entries[0] == entries[1]
        for owner in both:
            owner.shard.close()


def _reopened(owner: PlainOwner, is_manual: bool) -> PlainOwner:
    owner.shard.close()
    made = PlainOwner(owner.directory, owner.disk, clock=owner.clock, manual=is_manual, settings=SMALL)
    made.plainly += owner.plainly
    return made


def test_most_requests_are_plain(tmp_path: Path) -> None:
    owner = PlainOwner(tmp_path / "shard")
    owner.result(Set("s", Message(b"1")))
    owner.result(KvPut("kv", "k", Message(b"1")))
    assert owner.plainly == 0  # they made the stream and the store
    assert owner.result(Set("s", Message(b"2"))).seq == 2
    assert owner.result(Set("s", Message(None), None, "id", 0, Level.MEMORY)).seq == 3
    assert owner.result(KvPut("kv", "new", Message(b"1"))).seq == 2
    assert owner.result(KvPut("kv", "k", Message(b"22"), "id")).seq == 3
    assert owner.result(KvGet("kv", "k")).entries[0].value == b"22"
    assert owner.plainly == 5
    again = owner.result(Set("s", Message(None), None, "id"))
    assert (again.seq, again.is_duplicate) == (3, True)
    assert owner.plainly == 5


def test_memory_is_answered_before_the_commit_and_once(tmp_path: Path) -> None:
    owner = PlainOwner(tmp_path / "shard", manual=True)
    first = owner.ask(Set("s", Message(b"1")))
    owner.turn()
    owner.journal.commit_now()
    owner.run_posted()
    early = owner.ask(Set("s", Message(b"2"), level=Level.MEMORY))
    late = owner.ask(Set("s", Message(b"3")))
    assert owner.plainly == 2
    owner.turn()
    assert [len(one) for one in (first, early, late)] == [1, 1, 0]
    assert early[0].level is Level.MEMORY  # type: ignore[union-attr]
    owner.journal.commit_now()
    owner.run_posted()
    assert [len(one) for one in (first, early, late)] == [1, 1, 1]
    assert late[0].level is Level.FSYNC  # type: ignore[union-attr]


def test_a_get_waits_for_what_is_under_way(tmp_path: Path) -> None:
    owner = PlainOwner(tmp_path / "shard", manual=True)
    owner.ask(KvPut("kv", "k", Message(b"1")))
    owner.turn()
    owner.journal.commit_now()
    owner.run_posted()
    owner.ask(KvPut("kv", "k", Message(b"2")))
    asked = owner.ask(KvGet("kv", "k"))
    assert asked == []
    owner.turn()
    owner.journal.commit_now()
    owner.run_posted()
    assert asked[0].result.entries[0].value == b"2"  # type: ignore[union-attr]


class FailingJournal(MemoryJournal):
    """A journal whose commits fail when told to."""

    is_failing = False

    def commit(self, done: Any, failed: Any) -> None:
        if self.is_failing:
            failed(StorageError("no"))
        else:
            super().commit(done, failed)


def test_a_failed_commit_is_told_to_whoever_asked_plainly(tmp_path: Path) -> None:
    from tests.state_shards import JournalDisk

    journal = FailingJournal(JournalDisk())
    owner = PlainOwner(tmp_path / "shard", journal)
    owner.result(Set("s", Message(b"1")))
    journal.is_failing = True
    asked = [owner.ask(Set("s", Message(b"2"))), owner.ask(Set("s", Message(b"3")))]
    assert owner.plainly == 2
    owner.turn()
    for answers in asked:
        (answer,) = answers
        assert isinstance(answer, Failure)
        assert answer.code is ErrorCode.STORAGE
    assert isinstance(owner.ask(Set("s", Message(b"4")))[0], Failure)
    assert owner.plainly == 2


def test_ids_and_uploads_are_read_beside_plain_writes_that_no_file_has(tmp_path: Path) -> None:
    owner = PlainOwner(tmp_path, clock=TestClock())
    for request in (Set("s", Message(b"1"), None, "a"), Set("s", Message(b"2"))):
        owner.ask(request)
        owner.turn()
    owner.run_posted()
    owner = _reopened(owner, False)
    owner.do(Info("s"))  # brings the stream into memory; its ids stay in the file
    before = owner.plainly
    owner.ask(Set("s", Message(b"3")))
    assert owner.plainly == before + 1
    (again,) = _answered(owner, Set("s", Message(b"1"), None, "a"))
    (new,) = _answered(owner, Set("s", Message(b"4"), None, "b"))
    assert (again.result.seq, again.result.is_duplicate, new.result.seq) == (1, True, 4)
    owner.shard.close()


def _answered(owner: PlainOwner, request: Any) -> list[Any]:
    found = owner.ask(request)
    owner.turn()
    owner.run_posted()
    return found
