"""The shards of a directory with a bucket beside it: what is written reaches the bucket, and a lost disk is noticed."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from tests.tiered_owner import QUICK

from everlog.app.embedded import WallClock
from everlog.base import UsageError
from everlog.bus import LocalBus, LocalHub
from everlog.client import Client, Level
from everlog.persist import LocalShards, PersistServer, server
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
        async with Client(LocalBus(hub)) as client:
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
