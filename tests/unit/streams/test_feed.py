"""The change feed: events chain from position to position; state, then events, without gap or repeat."""

from tests.state_shards import Owner

from everlog.streams import (
    AllDeleted,
    Call,
    CaughtUp,
    Configured,
    Delete,
    EpochBegan,
    FeedBootstrap,
    FeedEvents,
    FeedReset,
    FeedResume,
    KeySet,
    KvDelete,
    KvPut,
    Level,
    Message,
    MessagesDeleted,
    MessageSet,
    QueueConfigure,
    Remove,
    Set,
    ShardSettings,
)


class Follower:
    """A client that keeps a copy of a stream, as `FeedBootstrap` and `FeedResume` say."""

    def __init__(self, stream="s"):
        self.stream = stream
        self.state = {}
        self.epoch = 0
        self.position = -1
        self.resets = []

    def take(self, owner, results):
        """Take in a series of results."""
        for one in results:
            if isinstance(one, FeedReset):
                self.state.clear()
                self.resets.append(one.reason)
            elif isinstance(one, FeedEvents):
                for event in one.events:
                    self.event(event)
            elif isinstance(one, CaughtUp):
                self.position, self.epoch = one.position, owner.shard.epoch if self.epoch == 0 else self.epoch
            else:
                for message in getattr(one, "messages", None) or one.entries:
                    key = getattr(message, "seq", None) or message.key
                    assert key not in self.state
                    self.state[key] = message.value

    def event(self, event):
        """Take in an event, which chains from what is known."""
        assert event.previous == self.position, (event, self.position)
        self.position, self.epoch = event.position, event.epoch
        for change in event.changes:
            if isinstance(change, MessageSet):
                self.state[change.message.seq] = change.message.value
            elif isinstance(change, KeySet):
                self.state[change.entry.key] = change.entry.value
            elif isinstance(change, MessagesDeleted):
                for first, last in change.ranges:
                    for seq in range(first, last + 1):
                        self.state.pop(seq, None)
            elif isinstance(change, AllDeleted):
                self.state.clear()
            elif isinstance(change, EpochBegan):
                self.state = {seq: value for seq, value in self.state.items() if seq <= change.last_seq}
            elif not isinstance(change, Configured):
                for key in change.keys:
                    self.state.pop(key, None)


def test_every_change_is_an_event_that_chains(tmp_path):
    owner = Owner(tmp_path / "shard")
    owner.follow("s")
    owner.add("s", b"1")
    owner.add("other", b"x")
    owner.add("s", b"2", b"3")
    owner.result(Delete("s", [1]))
    owner.result(QueueConfigure("s", "q"))
    owner.add("s", b"4")
    follower = Follower()
    for event in owner.events:
        follower.event(event)
    assert follower.state == {2: b"2", 3: b"3", 4: b"4"}
    assert [(event.previous, event.position) for event in owner.events] == [(-1, 0), (0, 2), (2, 3), (3, 4), (4, 6)]
    assert isinstance(owner.events[0].changes[0], Configured)
    owner.shard.close()


def test_a_bootstrap_while_writes_go_on_has_no_gap_and_no_repeat(tmp_path):
    owner = Owner(tmp_path / "shard")
    owner.follow("s")
    owner.add("s", *[b"%d" % n for n in range(100)])
    owner.events.clear()
    found = []
    owner.shard.handle_series(Call(FeedBootstrap("s", chunk_bytes=500)), found.append)
    follower = Follower()
    steps = 0
    for answer in found[0]:
        follower.take(owner, [answer.result])
        assert all(one.position <= 99 for one in getattr(answer.result, "messages", ()))
        owner.add("s", b"new %d" % steps)
        owner.result(Set("s", Message(b"changed"), seq=90))
        owner.result(Delete("s", [80]))
        steps += 1
    assert steps > 10
    for event in owner.events:
        follower.event(event)
    fresh = Follower()
    fresh.take(owner, owner.series(FeedBootstrap("s")))
    assert follower.state == fresh.state
    assert follower.position == fresh.position
    owner.shard.close()


def test_a_follower_resumes_from_its_position(tmp_path):
    owner = Owner(tmp_path / "shard")
    owner.add("s", b"1", b"2")
    follower = Follower()
    follower.take(owner, owner.series(FeedBootstrap("s")))
    assert owner.series(FeedResume("s", follower.epoch, follower.position)) == [CaughtUp(1, 2)]
    owner.add("s", b"3")
    owner.add("t", b"x")
    owner.result(Delete("s", [1]))
    follower.take(owner, owner.series(FeedResume("s", follower.epoch, follower.position)))
    assert follower.state == {2: b"2", 3: b"3"}
    again = owner.reopen()
    again.add("s", b"4")
    follower.take(again, again.series(FeedResume("s", follower.epoch, follower.position)))
    assert (follower.state, follower.epoch, follower.resets) == ({2: b"2", 3: b"3", 4: b"4"}, 2, [])
    again.shard.close()


def test_below_the_horizon_a_follower_begins_anew(tmp_path):
    owner = Owner(tmp_path / "shard", settings=ShardSettings(keep_records=2, sync_us=1, apply_us=0))
    follower = Follower()
    owner.add("s", b"1")
    follower.take(owner, owner.series(FeedBootstrap("s")))
    for n in range(6):
        owner.add("s", b"%d" % n)
        owner.tick(1)
    assert owner.journal.start > 1
    follower.take(owner, owner.series(FeedResume("s", follower.epoch, follower.position)))
    assert follower.resets == ["horizon"]
    assert len(follower.state) == 7
    follower.take(owner, owner.series(FeedResume("s", follower.epoch, follower.position)))
    assert follower.resets == ["horizon"]
    owner.shard.close()


def test_what_was_seen_and_never_committed_is_taken_back(tmp_path):
    owner = Owner(tmp_path / "shard", manual=True)
    owner.follow("s")
    owner.ask(Set("s", Message(b"kept")))
    owner.turn()
    owner.journal.commit_now()
    owner.run_posted()
    owner.ask(Set("s", Message(b"lost"), level=Level.MEMORY))
    owner.turn()
    follower = Follower()
    for event in owner.events:
        follower.event(event)
    assert follower.state == {1: b"kept", 2: b"lost"}
    again = owner.reopen(is_clean=False)
    again.follow("s")
    again.add("s", b"new")
    changes = again.events[0].changes
    assert changes[0] == EpochBegan(1, 0)
    assert again.events[0].previous == 0 != follower.position  # so the gap is seen
    follower.take(again, again.series(FeedResume("s", follower.epoch, follower.position)))
    assert follower.resets == ["epoch"]
    assert follower.state == {1: b"kept", 2: b"new"}
    again.shard.close()


def test_a_follower_that_a_later_owner_told_its_position_goes_on_from_there(tmp_path):
    owner = Owner(tmp_path / "shard")
    owner.add("s", b"one")
    again = owner.reopen()
    told = again.series(FeedBootstrap("s"))[-1]
    assert again.series(FeedResume("s", again.shard.epoch, told.position)) == [told]
    again.add("s", b"two")
    events, end = again.series(FeedResume("s", again.shard.epoch, told.position))
    assert isinstance(events, FeedEvents)
    assert isinstance(events.events[0].changes[0], EpochBegan)  # the record before it was of another owner
    assert isinstance(end, CaughtUp)
    again.shard.close()


def test_a_position_that_was_given_again_is_not_mistaken(tmp_path):
    owner = Owner(tmp_path / "shard", manual=True)
    owner.follow("s")
    owner.ask(Set("s", Message(b"lost"), level=Level.MEMORY))
    owner.turn()
    seen = owner.events[0]
    again = owner.reopen(is_clean=False)
    again.add("s", b"other")
    results = again.series(FeedResume("s", seen.epoch, seen.position))
    assert isinstance(results[0], FeedReset)
    again.shard.close()


def test_events_of_memory_writes_do_not_overtake_others(tmp_path):
    owner = Owner(tmp_path / "shard", manual=True)
    owner.follow("s", "t")
    owner.ask(Set("s", Message(b"safe")))
    owner.ask(Set("s", Message(b"quick"), level=Level.MEMORY))
    owner.ask(Set("t", Message(b"quick"), level=Level.MEMORY))
    owner.turn()
    assert [event.stream for event in owner.events] == ["t"]
    owner.journal.commit_now()
    owner.run_posted()
    assert [(event.stream, event.position) for event in owner.events] == [("t", 2), ("s", 0), ("s", 1)]
    owner.shard.close()


def test_stores_are_watched_by_prefix(tmp_path):
    owner = Owner(tmp_path / "shard")
    owner.result(KvPut("kv", "a/1", Message(b"1")))
    owner.result(KvPut("kv", "b/1", Message(b"2")))
    follower = Follower("kv")
    follower.take(owner, owner.series(FeedBootstrap("kv", prefix="a/")))
    assert follower.state == {"a/1": b"1"}
    owner.result(KvPut("kv", "a/2", Message(b"3")))
    owner.result(KvPut("kv", "b/2", Message(b"3")))
    owner.result(KvDelete("kv", "a/1"))
    follower.take(owner, owner.series(FeedResume("kv", follower.epoch, follower.position, prefix="a/")))
    assert follower.state == {"a/2": b"3"}
    owner.result(Remove("kv"))
    results = owner.series(FeedResume("kv", follower.epoch, follower.position))
    assert results == [FeedReset("unknown"), CaughtUp(-1, 0)]
    owner.shard.close()


def test_a_stream_that_is_not_there_yet_can_be_followed(tmp_path):
    owner = Owner(tmp_path / "shard")
    assert owner.series(FeedBootstrap("s")) == [CaughtUp(-1, 0)]
    owner.shard.close()
