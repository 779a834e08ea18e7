"""State shards on shared storage: servers with disks of their own that take a shard over from each other."""

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from tests.buckets import in_directory, in_memory
from tests.postgres_server import new_schema, shared_server
from tests.state_shards import TestClock

from everlog.base import Fenced, StorageError
from everlog.streams import (
    Answer,
    Call,
    ErrorCode,
    Failure,
    Get,
    GetAll,
    Info,
    Journal,
    KvCas,
    KvGet,
    KvPut,
    Level,
    Message,
    Reply,
    Set,
    ShardSettings,
    StateShard,
    Tier,
)
from everlog.tiering import (
    Bucket,
    GroupJournal,
    MemoryBucket,
    ObjectJournal,
    PostgresJournal,
    StreamsRemoved,
    make_journal_tables,
)

SETTINGS = ShardSettings(sync_us=1, keep_records=0, apply_rows=2, upload_us=1, history_us=0)


def _now(work: Callable[[], None]) -> None:
    work()


class Server:
    """A server that owns the shard at an epoch, with a disk of its own."""

    def __init__(self, directory: Path, journal: Journal, bucket: Bucket | None = None) -> None:
        directory.mkdir()
        self._posted: Queue[Callable[[], None]] = Queue()
        self.clock = TestClock()
        tier = None
        if bucket is not None:
            is_copied = not isinstance(journal, ObjectJournal)
            tier = Tier.open(bucket, "shard-0", journal, _now, _now, is_copied=is_copied, archive_us=1)
            tier.prepare(str(directory))
        self.shard = StateShard(
            journal, str(directory), self.clock, post=self._posted.put, run=_now, settings=SETTINGS, tier=tier
        )

    def do(self, request: Any) -> Answer:
        """Ask something and return the answer, once what it waits for is committed."""
        answers: list[Answer] = []
        self.shard.handle(Call(request), answers.append)
        self.shard.turn()
        while not answers:
            self._posted.get(timeout=20)()
        return answers[0]

    def result(self, request: Any) -> Any:
        answer = self.do(request)
        assert isinstance(answer, Reply), answer
        return answer.result

    def values(self, stream: str) -> list[bytes | None]:
        found: list[Any] = []
        self.shard.handle_series(Call(GetAll(stream)), found.append)
        self.shard.turn()
        while not found:
            self._posted.get(timeout=20)()
        return [message.value for answer in found[0] for message in answer.result.messages]

    def tick(self) -> None:
        """Let time pass: files are synced, and the journal is asked to let go of what is in them."""
        self.clock.time_us += 60_000_000
        self.shard.tick()
        while not self._posted.empty():
            self._posted.get()()


Serve = Callable[..., Server]


@pytest.fixture(params=["directory", "memory", "postgres"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Serve]:
    """Start a server that takes the shard over, by epoch; its disk is empty."""
    journals: list[Any] = []

    def started(open_journal: Callable[[int], Any]) -> Serve:
        def start(epoch: int, bucket: Bucket | None = None) -> Server:
            journals.append(open_journal(epoch))
            return Server(tmp_path / f"server-{epoch}", journals[-1], bucket)

        return start

    if request.param == "postgres":
        url, schema = shared_server().url, new_schema()
        make_journal_tables(url, schema)
        yield started(lambda epoch: PostgresJournal(url, "shard-0", epoch, schema=schema))
    else:
        with {"directory": in_directory, "memory": in_memory}[request.param](tmp_path) as opener:
            yield started(lambda epoch: ObjectJournal(opener(), "shard-0", epoch, group_s=0))
    for journal in journals:
        journal.close()


def test_a_server_with_an_empty_disk_has_all_that_was_acknowledged(serve: Serve) -> None:
    first = serve(1)
    for number in range(30):
        first.result(Set(f"stream/{number % 3}", Message(b"%d" % number)))
        first.result(KvPut("settings", f"key-{number % 5}", Message(b"%d" % number)))
        if number % 10 == 9:
            first.tick()
    second = serve(2)
    for stream in range(3):
        expected = [b"%d" % number for number in range(30) if number % 3 == stream]
        assert second.values(f"stream/{stream}") == expected
    assert [second.result(KvGet("settings", f"key-{key}")).entries[0].value for key in range(5)] == [
        b"25", b"26", b"27", b"28", b"29"
    ]  # fmt: skip
    assert second.result(Set("stream/0", Message(b"more"))).seq == 11


def test_a_server_that_was_replaced_answers_no_more_writes(serve: Serve) -> None:
    first = serve(1)
    seq = first.result(Set("stream", Message(b"one"))).seq
    second = serve(2)
    answer = first.do(Set("stream", Message(b"two")))
    assert isinstance(answer, Failure)
    assert answer.code == ErrorCode.FENCED
    assert second.result(Get("stream", seq)).messages[0].value == b"one"
    assert second.result(Info("stream")).messages == 1


def test_a_server_that_lacks_what_was_trimmed_does_not_begin_without_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlog.tiering.numbered.MILESTONES", (4, 16, 64))
    first = serve(1)
    for number in range(30):
        first.result(Set("stream", Message(b"%d" % number)))
    journal = first.shard.journal
    assert isinstance(journal, GroupJournal)
    journal.allow_trim(20)
    first.tick()
    first.result(Set("stream", Message(b"more")))
    assert journal.start == 20
    with pytest.raises(StorageError, match="restore the shard"):
        serve(2)


def test_a_server_with_an_empty_disk_begins_with_packs_and_the_journal_behind_them(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlog.tiering.numbered.MILESTONES", (4, 16, 64))
    bucket = MemoryBucket()
    first = serve(1, bucket)
    for number in range(40):
        first.result(Set(f"stream/{number % 3}", Message(b"%d" % number)))
        if number % 10 == 9:
            first.tick()
    assert first.result(Set("stream/0", Message(b"archived"), level=Level.ARCHIVED)).seq == 15
    first.tick()
    first.result(Set("stream/1", Message(b"behind")))
    assert first.shard.journal.start > 20
    second = serve(2, bucket)
    assert second.values("stream/0") == [*(b"%d" % number for number in range(0, 40, 3)), b"archived"]
    assert second.values("stream/1") == [*(b"%d" % number for number in range(1, 40, 3)), b"behind"]
    assert second.result(Set("stream/2", Message(b"more"))).seq == 14
    with pytest.raises(Fenced):
        first.shard.tier.rounds._tell(StreamsRemoved([], 1), 0)  # type: ignore[union-attr]
    for server in (first, second):
        server.shard.abandon()


def test_a_compare_and_set_is_won_by_one_of_two_owners(serve: Serve) -> None:
    first = serve(1)
    revision = first.result(KvPut("lock", "key", Message(b"free"))).seq
    second = serve(2)
    answers = [owner.do(KvCas("lock", "key", Message(b"mine"), revision)) for owner in (first, second)]
    assert [isinstance(answer, Reply) for answer in answers] == [False, True]
