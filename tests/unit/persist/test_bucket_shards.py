"""The shards of a directory with a bucket beside it: what is written reaches the bucket, and a lost disk is noticed."""

import asyncio
import contextlib
import shutil
from dataclasses import replace

import pytest
from tests.tiered_owner import QUICK

from everlog.app.embedded import WallClock
from everlog.base import Unavailable, UsageError
from everlog.bus import LocalBus, LocalHub
from everlog.client import Client, Level
from everlog.persist import LocalShards, PersistServer, restore_directory, server
from everlog.streams import ShardSettings
from everlog.tiering import Bucket, JournalReader, MemoryBucket, read_packs

SETTINGS = replace(QUICK, upload_us=20_000, archive_us=1_000, most_files=2)


@contextlib.asynccontextmanager
async def served(directory, bucket: Bucket | None, settings: ShardSettings = SETTINGS):
    """A server with two shards, and a client."""
    shards = LocalShards(str(directory), WallClock(), 2, settings, bucket)
    hub = LocalHub()
    serving = PersistServer(LocalBus(hub), shards)
    await serving.start()
    try:
        for shard in range(2):
            await serving.own(shard)
        async with Client(LocalBus(hub), timeout_s=60) as client:
            yield client, serving
    finally:
        await serving.stop()
        shards.close()


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch):
    monkeypatch.setattr(server, "TICK_S", 0.01)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def packed(bucket):
    return {name for shard in range(2) for name in read_packs(bucket, f"shard-{shard}/manifest").files}


async def test_streams_and_journal_reach_the_bucket_and_files_go(tmp_path):
    bucket = MemoryBucket()
    async with served(tmp_path / "a", bucket) as (client, serving):
        names = [f"s/{n}" for n in range(20)]
        for name in names:
            await client.stream(name).append(b"of " + name.encode())
        await until(lambda: packed(bucket) == set(names))
        tiers = [one._shard.tier for one in serving._shards.values()]
        await until(lambda: sum(tier.files.evicted for tier in tiers) >= 16)
        got = [await client.stream(name).get(1) for name in names]
        assert [one.value for one in got] == [b"of " + name.encode() for name in names]
        assert sum(tier.files.fetched for tier in tiers) > 0
        done = await client.stream("s/0").append(b"archived", level=Level.ARCHIVED)
        readers = [JournalReader(bucket, f"shard-{shard}/journal") for shard in range(2)]
        for reader in readers:
            reader.follow()
        assert any(effect for reader in readers for at, name, effect in reader.read(reader.start, reader.end)
                   if name == "s/0" and at == done.position)  # fmt: skip
    async with served(tmp_path / "a", bucket) as (client, _):
        assert (await client.stream("s/0").get(2)).value == b"archived"


async def test_the_bucket_of_another_directory_is_refused(tmp_path):
    bucket = MemoryBucket()
    async with served(tmp_path / "a", bucket) as (client, _):
        await client.stream("s").append(b"1")
    shards = LocalShards(str(tmp_path / "b"), WallClock(), 2, SETTINGS, bucket)
    with pytest.raises(UsageError, match="another directory"):
        shards.open(0)
    shards.close()


async def test_a_directory_without_a_bucket_pays_nothing_for_one(tmp_path):
    async with served(tmp_path / "a", None) as (client, serving):
        await client.stream("s").append(b"1")
        assert all(one._shard is None or one._shard.tier is None for one in serving._shards.values())


async def test_a_lost_directory_is_made_anew_from_its_bucket(tmp_path):
    bucket = MemoryBucket()
    async with served(tmp_path / "a", bucket) as (client, _):
        for n in range(20):
            await client.stream(f"s/{n % 4}").append(b"%d" % n, level=Level.ARCHIVED if n % 5 == 4 else Level.FSYNC)
        await until(lambda: len(packed(bucket)) == 4)
        for n in range(4):
            await client.stream(f"s/{n}").append(b"behind", level=Level.ARCHIVED)
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(UsageError, match="another directory"):
        LocalShards(str(tmp_path / "a"), WallClock(), 2, SETTINGS, bucket).open(0)
    with pytest.raises(UsageError, match="not empty"):
        restore_directory(bucket, str(tmp_path / "a"))
    restored = restore_directory(bucket, str(tmp_path / "b"))
    assert sum(one.streams for one in restored) == 4
    async with served(tmp_path / "b", bucket) as (client, _):
        for n in range(4):
            values = [one.value async for one in client.stream(f"s/{n}").get_all()]
            assert values == [*(b"%d" % one for one in range(n, 20, 4)), b"behind"]
            assert (await client.stream(f"s/{n}").append(b"more", level=Level.ARCHIVED)).seq == 7


class Unreachable(MemoryBucket):
    """A bucket that takes nothing while it is away."""

    is_away = False

    def create(self, name, data):
        if self.is_away:
            raise Unavailable("the bucket can't be reached")
        return super().create(name, data)

    def put_file(self, name, path):
        if self.is_away:
            raise Unavailable("the bucket can't be reached")
        super().put_file(name, path)


async def test_without_the_bucket_fsync_goes_on_and_archived_waits(tmp_path):
    bucket = Unreachable()
    async with served(tmp_path / "a", bucket) as (client, _):
        stream = client.stream("s")
        await stream.append(b"1", level=Level.ARCHIVED)
        bucket.is_away = True
        archived = asyncio.create_task(client.stream("a").append(b"2", level=Level.ARCHIVED))
        for n in range(50):
            assert (await stream.append(b"x")).seq == 2 + n
            assert (await client.stream("t").append(b"y", level=Level.MEMORY)).seq == 1 + n
        assert not archived.done()
        bucket.is_away = False
        assert (await archived).seq == 1
        await until(lambda: packed(bucket) == {"a", "s", "t"})


async def test_a_server_tells_how_much_waits_for_files(tmp_path):
    async with served(tmp_path / "a", None, ShardSettings(apply_us=10**15, sync_us=10**15)) as (client, serving):
        for _ in range(3):
            await client.stream("s").append(b"x" * 100)
        (found,) = await client.servers(0.05)
        assert found.unfiled_rows == 3
        assert found.unfiled_bytes > 300
        assert [one.value async for one in client.stream("s").get_all()] == [b"x" * 100] * 3
        assert (serving.welcome().unfiled_rows, serving.welcome().unfiled_bytes) == (0, 0)
