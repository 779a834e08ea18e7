"""State shards through kills, power cuts and restarts: what is read is what the journal's records say, and no more
is ever acknowledged than it holds."""

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from tests.power_cut import watched
from tests.state_shards import Owner
from tests.stream_history import History, Write
from tests.tiered_owner import FOLDER, FlakyBucket, TieredOwner
from tests.unit.streams.conftest import quick_files as quick_files

from everlog.streams import (
    Batch,
    Call,
    Config,
    Configure,
    Delete,
    DeleteAll,
    Discard,
    FeedBootstrap,
    GetAll,
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
    Upload,
    Written,
)
from everlog.streams.effects import DropAll, DropKeys, DropMessages, Part, PutKey, PutMessage, decode_record
from everlog.tiering import BucketPacks, Packs, read_manifest, read_packs

STREAMS = ("a", "b/limited", "c")
STORES = ("kv", "kv/2")
SETTINGS = ShardSettings(
    apply_rows=4, most_open=2, most_states=3, keep_records=5, sync_us=3_000_000, apply_us=2_000_000, expire_rows=3
)
TIERED = replace(SETTINGS, upload_us=2_000_000, most_files=1, most_open=1, history_us=3_000_000, unnamed_us=20_000_000)


class Model:
    """All streams as the records of a journal say, by a replay that has nothing in common with the shard's."""

    def __init__(self, records):
        self.streams = {}
        self.positions = {}
        parts = {}
        for position, (name, effect) in enumerate(records):
            record = decode_record(effect)
            self.positions[position] = (name, record)
            for one in record.effects:
                rows = self.streams.setdefault(name, {})
                if isinstance(one, Part):
                    parts.setdefault((name, one.upload), {})[one.part] = one.data
                elif isinstance(one, PutMessage | PutKey):
                    value = one.value
                    if one.upload is not None:
                        held = parts.pop((name, one.upload))
                        value = b"".join(held[part] for part in sorted(held))
                    rows[one.seq if isinstance(one, PutMessage) else one.key] = (value, position)
                elif isinstance(one, DropMessages):
                    for seq in [seq for seq in rows if any(first <= seq <= last for first, last in one.ranges)]:
                        del rows[seq]
                elif isinstance(one, DropKeys):
                    for key in one.keys:
                        del rows[key]
                elif isinstance(one, DropAll):
                    rows.clear()
                    if one.is_removed:
                        del self.streams[name]
            if name in self.streams:
                assert record.messages == len(self.streams[name]), (position, record)
                used = sum(len(value or b"") + _key_bytes(key) for key, (value, _) in self.streams[name].items())
                assert record.bytes == used, (position, record)


def _key_bytes(key):
    return len(key.encode()) if isinstance(key, str) else 0


class Run:
    """One run of random requests and faults."""

    def __init__(self, directory, power, seed):
        self.random = Random(seed)
        self.power = power
        self.owner = self.opened(directory)
        self.history = History()
        self.number = 0
        self.acked = []  # (position, record's stream) of writes that were acknowledged at fsync
        self.answers = []
        self.ask(Configure("b/limited", Kind.STREAM, Config(max_messages=6, max_bytes=60)))
        self.history.may_change("b/limited", range(1, 10_000))
        self.ask(Configure("c", Kind.STREAM, Config(max_messages=9, discard=Discard.NEW)))

    def opened(self, directory, disk=None, clock=None):
        """Return an owner that begins."""
        return Owner(directory, disk, clock=clock, settings=SETTINGS, manual=True)

    def work(self):
        """Do what waits for a bucket."""

    def value(self):
        self.number += 1
        return b"%d" % self.number + b"." * self.random.randrange(8)

    def ask(self, request):
        epoch = self.owner.shard.epoch

        def answered(answer):
            if isinstance(answer, Reply) and isinstance(answer.result, Written):
                self.answered(request, answer, epoch)

        self.owner.shard.handle(Call(request), answered)

    def answered(self, request, answer, epoch):
        result = answer.result
        if answer.level is not Level.MEMORY and not result.is_duplicate and result.count:
            self.acked.append((result.position, request.stream, epoch))
        if isinstance(request, Set) and request.upload is None and not result.is_duplicate:
            write = Write(epoch, result.position, result.seq, request.message.value, answer.level)
            self.history.wrote(request.stream, write)
        if isinstance(request, KvCas) and request.revision and answer.level is not Level.MEMORY:
            self.history.won(request.stream, request.key, request.revision, result.seq)

    def request(self):
        random = self.random
        level = random.choice((Level.FSYNC, Level.FSYNC, Level.MEMORY))
        message = Message(self.value())
        if random.random() < 0.35:
            store, key = random.choice(STORES), random.choice("xyz")
            revision = self.revision(store, key)
            return random.choice(
                (
                    KvPut(store, key, message, level=level),
                    KvCas(store, key, message, revision, level=level),
                    KvCas(store, key, message, max(0, revision - 1), level=level),
                    KvDelete(store, key),
                    KvPut(store, key, message, ttl_us=2_000_000),
                    DeleteAll(store) if random.random() < 0.2 else KvPut(store, key, message),
                    Batch(store, [KvPut(store, "x", message), KvDelete(store, key), KvPut(store, key, message)]),
                )
            )
        stream = random.choice(STREAMS)
        low = random.randrange(1, 12)
        kind = random.randrange(12)
        if kind < 4:
            return Set(stream, message, level=level)
        if stream == "a":  # of which nobody ever deletes anything
            return Batch(stream, [Set(stream, message), Set(stream, Message(self.value()))])
        self.history.may_change(stream, range(1, 10_000))
        if kind == 4:
            return Set(stream, message, seq=low, level=level)
        if kind == 5:
            return Delete(stream, [low, low + 1, low + 7])
        if kind == 6:
            return DeleteAll(stream, end_seq=low)
        if kind == 7:
            return Set(stream, message, ttl_us=random.randrange(1, 5_000_000))
        if kind == 8 and random.random() < 0.15:
            return Remove(stream)
        if kind == 9:
            self.ask(Upload(stream, f"u{self.number}", 0, b"big "))
            self.ask(Upload(stream, f"u{self.number}", 1, b"value"))
            return Set(stream, Message(), upload=f"u{self.number}")
        if kind == 10:
            return Set(stream, message, message_id=f"id{random.randrange(6)}")
        return Batch(stream, [Set(stream, message), Delete(stream, [low]), Set(stream, Message(self.value()))])

    def revision(self, store, key):
        found = self.owner.shard.views.find(store)
        if found is None or found.is_removed:
            return 0
        known = self.owner.shard.draft(found).find(key)
        return 0 if known is None else known.revision

    def step(self):
        random, owner = self.random, self.owner
        for _ in range(random.randrange(1, 5)):
            self.ask(self.request())
        what = random.randrange(10)
        owner.turn()
        if what < 6:
            owner.journal.commit_now()
        elif what < 7:
            owner.journal.commit_now(upto=owner.journal.committed + random.randrange(5))
        owner.run_posted()
        if random.random() < 0.2:
            owner.clock.time_us += 1_000_000
            owner.shard.tick()
            owner.run_posted()
        if random.random() < 0.06:
            self.fault()

    def fault(self):
        """End this owner in one of many ways, and let the next one begin."""
        random, owner = self.random, self.owner
        kind = random.choice(("clean", "kill", "power", "zombie"))
        if kind == "zombie":  # it goes on for a while after the next owner has begun
            owner.disk.epoch += 1
            self.ask(Set("a", Message(b"of a zombie")))
            self.work()
            owner.turn()
            owner.journal.commit_now()
            owner.run_posted()
            assert owner.shard.failure is not None
            owner.journal.crash(0)
            owner.shard.abandon()
        elif kind == "clean":
            owner.shard.close()
        else:
            owner.journal.crash(random.randrange(1 + owner.journal.end - owner.journal.committed))
            with suppress(Exception):
                if kind == "kill":
                    owner.shard.abandon()
        if kind == "power":
            for file in list(owner.shard.views.files._files.values()):
                file._connection.close()
            owner.shard.views.catalogue._connection.close()
            self.power.cut()
        self.owner = self.opened(owner.directory, owner.disk, owner.clock)
        self.compare()

    def compare(self):
        """Compare what is read with what the journal says, and what was acknowledged with the journal."""
        owner = self.owner
        owner.turn()
        owner.journal.commit_now()
        owner.run_posted()
        disk = owner.disk
        model = Model([*disk.trimmed, *disk.records[disk.start :]])
        for position, stream, epoch in self.acked:
            name, record = model.positions[position]
            assert (name, record.epoch) == (stream, epoch), (position, stream, epoch)
        for name in STREAMS:
            expected = model.streams.get(name)
            if expected is None:
                assert not isinstance(self.one(Info(name)), Reply)
                continue
            found = {m.seq: (m.value, m.position) for c in self.series(GetAll(name)) for m in c.messages}
            assert found == expected, name
            assert self.one(Info(name)).result.messages == len(expected)
            held = [m for c in self.series(FeedBootstrap(name)) for m in getattr(c, "messages", ())]
            assert {m.seq: (m.value, m.position) for m in held} == expected
            assert self.history.check(name, held) == []
        for name in STORES:
            expected = model.streams.get(name)
            if expected is not None:
                keys = {
                    e.key: (e.value, e.position) for c in self.series(KvKeys(name, with_values=True)) for e in c.entries
                }
                assert keys == expected, name
                for key in "xyz":
                    answer = self.one(KvGet(name, key))
                    assert isinstance(answer, Reply) == (key in expected)
                    if key in expected:
                        assert answer.result.entries[0].value == expected[key][0]
                assert self.history.check(name, []) == []

    def one(self, request):
        answers = self.owner.ask(request)
        assert len(answers) == 1
        return answers[0]

    def series(self, request):
        found = []
        self.owner.shard.handle_series(Call(request), found.append)
        return [answer.result for answer in found[0]]


@pytest.mark.parametrize("long_replay", [-1, 1 << 60])  # files are asked what they have, or not
@pytest.mark.parametrize("seed", range(6))
def test_what_is_read_is_what_the_journal_says(tmp_path, seed, long_replay, monkeypatch):
    monkeypatch.setattr("everlog.streams.views.LONG_REPLAY", long_replay)
    with watched(tmp_path / "shard") as power:
        run = Run(tmp_path / "shard", power, seed)
        for _ in range(100):
            run.step()
        run.compare()
        run.owner.shard.close()


class TieredRun(Run):
    """A run with a bucket that can't always be reached, files that go, and servers that lose their disk."""

    def __init__(self, directory, power, seed):
        self.bucket = FlakyBucket(Random(seed))
        self.names = set()
        super().__init__(directory, power, seed)

    def opened(self, directory, disk=None, clock=None):
        self.bucket.is_flaky = False
        if disk is not None and self.random.random() < 0.3:  # the next owner has another disk
            self.power.cut_off(directory)
        owner = TieredOwner(
            directory, self.bucket, disk, clock=clock, settings=TIERED, is_manual=True, is_commit_manual=True
        )
        self.bucket.is_flaky = True
        return owner

    def step(self):
        super().step()
        if self.random.random() < 0.5:
            self.owner.work()
        self.check_packs()

    def compare(self):
        self.work()
        self.bucket.is_flaky = False
        super().compare()
        self.bucket.is_flaky = True

    def work(self):
        self.bucket.is_flaky = False
        self.owner.work()
        self.bucket.is_flaky = True

    def one(self, request):
        answers = self.owner.ask(request)
        self.owner.work()
        assert len(answers) == 1
        return answers[0]

    def series(self, request):
        found = []
        self.owner.shard.handle_series(Call(request), found.append)
        self.owner.work()
        answers = list(found[0])
        assert all(isinstance(answer, Reply) for answer in answers), answers
        return [answer.result for answer in answers]

    def revision(self, store, key):
        self.bucket.is_flaky = False
        found = super().revision(store, key)
        self.bucket.is_flaky = True
        return found

    def check_packs(self):
        """Check that everything below the journal's beginning is in packs that are there, whole."""
        packs = read_packs(self.bucket.inner, f"{FOLDER}/manifest")
        assert packs.below >= self.owner.disk.start
        index, known = self.owner.shard.tier.index, Packs()
        for position, told in read_manifest(self.bucket.inner, f"{FOLDER}/manifest"):
            if position < index.manifest:
                known.take(told)
        for name in (*STREAMS, *STORES):
            place = index.place(name)
            assert place is None or known.files[name][0] == place.pack
        for record in packs.records():
            if record.pack not in self.names:
                BucketPacks(self.bucket.inner).verify(record)
                self.names.add(record.pack)


@pytest.mark.parametrize("long_replay", [-1, 1 << 60])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_holds_with_a_bucket_and_servers_that_lose_their_disks(tmp_path, seed, long_replay, monkeypatch):
    monkeypatch.setattr("everlog.streams.views.LONG_REPLAY", long_replay)
    with watched(tmp_path / "shard") as power:
        run = TieredRun(tmp_path / "shard", power, seed)
        for _ in range(100):
            run.step()
        run.compare()
        run.owner.shard.close()
