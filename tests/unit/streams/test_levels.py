"""Acknowledgements: at the level that was asked for, one commit for all, and never when it failed."""

from tests.state_shards import JournalDisk, MemoryJournal, Owner

from everlog.base import StorageError
from everlog.streams import (
    Call,
    ErrorCode,
    Get,
    GetAll,
    Info,
    KvGet,
    KvPut,
    Level,
    Message,
    Reply,
    Set,
    ShardSettings,
)


def test_fsync_waits_for_the_commit_and_memory_does_not(tmp_path):
    owner = Owner(tmp_path / "shard", manual=True)
    safe = owner.ask(Set("s", Message(b"safe")))
    quick = owner.ask(Set("s", Message(b"quick"), level=Level.MEMORY))
    assert not quick
    owner.turn()
    assert not safe
    assert (quick[0].level, quick[0].result.seq) == (Level.MEMORY, 2)
    owner.journal.commit_now()
    owner.run_posted()
    assert (safe[0].level, safe[0].position, safe[0].epoch) == (Level.FSYNC, 0, 1)
    assert quick[0].result.previous == 0
    owner.shard.close()


def test_one_commit_serves_all_streams_of_a_turn(tmp_path):
    owner = Owner(tmp_path / "shard")
    asked = [owner.ask(Set(f"s/{n}", Message(b"x"))) for n in range(50)]
    owner.turn()
    assert all(isinstance(one[0], Reply) for one in asked)
    assert owner.journal.commits == 1
    owner.shard.close()


def test_readers_see_only_what_is_committed(tmp_path):
    owner = Owner(tmp_path / "shard", manual=True)
    owner.ask(Set("s", Message(b"x")))
    owner.ask(KvPut("kv", "k", Message(b"x")))
    owner.turn()
    read, found, info, series = owner.ask(Get("s", 1)), owner.ask(KvGet("kv", "k")), owner.ask(Info("s")), []
    owner.shard.handle_series(Call(GetAll("s")), series.append)
    assert (read, found, info, series) == ([], [], [], [])
    owner.journal.commit_now()
    owner.run_posted()
    assert read[0].result.messages[0].value == b"x"
    assert found[0].result.entries[0].value == b"x"
    assert info[0].result.messages == 1
    assert len(list(series[0])) == 1
    owner.shard.close()


def test_archived_waits_for_the_bucket(tmp_path):
    class Archive:
        end = 0
        wanted: list = []

        def want(self, end, done):
            self.wanted.append((end, done))

    archive = Archive()
    owner = Owner(tmp_path / "shard", archive=archive)
    owner.add("s", b"x")
    asked = owner.ask(Set("s", Message(b"y"), level=Level.ARCHIVED))
    owner.turn()
    assert not asked
    ((end, done),) = archive.wanted
    assert end == 2
    done(end)
    owner.run_posted()
    assert asked[0].level is Level.ARCHIVED
    owner.shard.close()
    bare = Owner(tmp_path / "bare")
    assert bare.refusal(Set("s", Message(b"y"), level=Level.ARCHIVED)).code is ErrorCode.BAD_REQUEST
    bare.shard.close()


def test_an_owner_that_was_replaced_acknowledges_nothing(tmp_path):
    disk = JournalDisk()
    owner = Owner(tmp_path / "shard", MemoryJournal(disk, manual=True))
    failures = []
    owner.shard.on_failure = failures.append
    asked = [owner.ask(Set("s", Message(b"x"))), owner.ask(Get("s", 1))]
    owner.turn()
    MemoryJournal(disk)  # the next owner
    owner.journal.commit_now()
    owner.run_posted()
    assert [one[0].code for one in asked] == [ErrorCode.FENCED, ErrorCode.FENCED]
    assert owner.refusal(Set("s", Message(b"y"))).code is ErrorCode.FENCED
    assert len(failures) == 1
    owner.shard.abandon()


def test_a_journal_that_takes_no_more_ends_the_shard(tmp_path):
    owner = Owner(tmp_path / "shard")

    def append(records):
        raise StorageError("the disk is gone")

    owner.journal.append = append
    asked = owner.ask(Set("s", Message(b"x")))
    later = owner.ask(Info("s"))
    owner.turn()
    assert asked[0].code is ErrorCode.STORAGE
    assert later[0].code is ErrorCode.STORAGE
    owner.shard.abandon()


def test_a_caller_that_has_seen_more_is_not_answered(tmp_path):
    owner = Owner(tmp_path / "shard")
    owner.add("s", b"x")
    assert owner.refusal(Get("s", 1), seen_epoch=1, seen_position=1).code is ErrorCode.BEHIND
    assert owner.refusal(Get("s", 1), seen_epoch=2).code is ErrorCode.BEHIND
    assert owner.result(Get("s", 1), seen_epoch=1, seen_position=0)
    again = owner.reopen()
    assert again.result(Get("s", 1), seen_epoch=1, seen_position=900)
    again.shard.close()


def test_too_many_waiting_requests_are_refused(tmp_path):
    owner = Owner(tmp_path / "shard", manual=True, settings=ShardSettings(waiting=3))
    for _ in range(4):
        owner.ask(Set("s", Message(b"x")))
    owner.turn()
    assert owner.ask(Set("s", Message(b"x")))[0].code is ErrorCode.BUSY
    owner.journal.commit_now()
    owner.run_posted()
    assert owner.ask(Set("s", Message(b"x"))) == []
    owner.shard.close()


def test_closing_commits_and_answers_what_waits(tmp_path):
    owner = Owner(tmp_path / "shard", manual=True)
    asked = owner.ask(Set("s", Message(b"x")))
    owner.shard.close()
    assert asked[0].level is Level.FSYNC
    assert owner.ask(Get("s", 1))[0].code is ErrorCode.UNAVAILABLE


class SlowArchive:
    """A bucket that has what a test says."""

    def __init__(self):
        self.end = 0
        self.wanted = []

    def want(self, end, done):
        self.wanted.append((end, done))

    def reach(self, end):
        self.end = end
        for wanted, done in self.wanted:
            if wanted <= end:
                done(end)
        self.wanted = [one for one in self.wanted if one[0] > end]


def test_an_archived_write_that_is_asked_for_again_waits_for_the_bucket_too(tmp_path):
    archive = SlowArchive()
    owner = Owner(tmp_path / "shard", archive=archive)
    request = Set("s", Message(b"x"), message_id="once", level=Level.ARCHIVED)
    first = owner.ask(request)
    owner.turn()
    again = owner.ask(request)
    owner.turn()
    assert (first, again) == ([], [])
    assert owner.do(Set("s", Message(b"y"))).level is Level.FSYNC
    archive.reach(1)
    owner.run_posted()
    assert [one[0].level for one in (first, again)] == [Level.ARCHIVED] * 2
    assert [one[0].result.seq for one in (first, again)] == [1, 1]
    owner.shard.close()


def test_so_many_wait_for_the_bucket_and_those_who_do_are_told_of_the_end(tmp_path):
    owner = Owner(tmp_path / "shard", archive=SlowArchive(), settings=ShardSettings(waiting=3))
    asked = []
    for n in range(5):
        asked.append(owner.ask(Set("s", Message(b"%d" % n), level=Level.ARCHIVED)))
        owner.turn()
    assert [bool(one) for one in asked] == [False, False, False, True, True]
    assert {one[0].code for one in asked[3:]} == {ErrorCode.BUSY}
    assert owner.add("s", b"safe") == [4]
    owner.shard.close()
    assert {one[0].code for one in asked[:3]} == {ErrorCode.UNAVAILABLE}


def test_the_journal_keeps_what_the_bucket_does_not_have_up_to_a_limit(tmp_path):
    archive = SlowArchive()
    settings = ShardSettings(keep_records=0, sync_us=1, apply_us=0, unarchived_records=50)
    owner = Owner(tmp_path / "shard", archive=archive, settings=settings)

    def pass_time():
        owner.add("s", b"x")
        owner.tick(1)
        owner.add("s", b"x")
        owner.tick(1)

    owner.add("s", *[b"x"] * 20)
    pass_time()
    assert owner.journal.start == 0
    archive.reach(15)
    pass_time()
    assert owner.journal.start == 15
    owner.add("s", *[b"x"] * 100)
    pass_time()
    assert owner.journal.start > 60
    owner.shard.close()
