"""Persist servers with an S3 bucket that can't be reached for a while, or while the server dies amidst an upload."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from tests.buckets import s3_options
from tests.crash.test_persist_servers import SHARDS, servers, shared_by, until_refused, working
from tests.fault_proxy import FaultProxy
from tests.nats_servers import NatsServer, needs_nats
from tests.persist_process import PersistProcess, loading_first
from tests.persist_world import World
from tests.s3_server import BUCKET

from everlog.bus import make_bus
from everlog.client import Client, Level
from everlog.persist import restore_directory
from everlog.tiering import open_bucket, read_packs

pytestmark = [needs_nats, pytest.mark.slow]

PATIENCE_S = 60.0

# Streams are packed at every tick instead of once a minute.
QUICK = """
import everlog.persist.local_shards as room
from dataclasses import replace

really = room.LocalShards.__init__

def begin(self, *arguments, **options):
    really(self, *arguments, **options)
    self._settings = replace(self._settings, apply_us=0, sync_us=1, upload_us=1, archive_us=1)

room.LocalShards.__init__ = begin
"""


class Store:
    """A prefix of an S3 bucket, as servers reach it through the proxy and the test does not."""

    def __init__(self, proxy: FaultProxy, directory: Path) -> None:
        self.proxy = proxy
        self.place = f"s3://{BUCKET}/{uuid4().hex}"
        self.bucket = open_bucket(self.place, s3_options())
        library = directory / "library"
        library.mkdir()
        (library / "sitecustomize.py").write_text(QUICK)
        self.variables = s3_options() | {
            "AWS_ENDPOINT_URL": f"http://{proxy.address}",
            "PYTHONPATH": loading_first(library),
        }

    def packed(self) -> set[str]:
        return set(read_packs(self.bucket, "shard-0/manifest").files)


@asynccontextmanager
async def store(directory: Path) -> AsyncIterator[Store]:
    with FaultProxy(s3_options()["AWS_ENDPOINT_URL"].removeprefix("http://")) as proxy:
        yield Store(proxy, directory)


async def test_while_the_bucket_is_away_fsync_goes_on_and_archived_waits_for_it(tmp_path: Path) -> None:
    async with store(tmp_path) as away:
        options = ("--bucket", away.place)
        with (
            NatsServer(tmp_path) as nats,
            PersistProcess(tmp_path, nats.url, *options, variables=away.variables) as server,
        ):
            async with World(nats.url) as world, Client(make_bus(nats.url), timeout_s=PATIENCE_S) as client:
                await client.stream("kept").append(b"before", level=Level.ARCHIVED)
                away.proxy.cut(refuse=True)
                archived = asyncio.create_task(client.stream("kept").append(b"while away", level=Level.ARCHIVED))
                await world.until_acked(40)
                assert not archived.done()
                server.kill()
                away.proxy.go_on()
                await asyncio.to_thread(server.start)
                assert (await archived).seq == 2
                await world.check()


@pytest.mark.soak
async def test_a_server_killed_in_the_midst_of_an_upload_leaves_a_bucket_that_is_whole(tmp_path: Path) -> None:
    async with store(tmp_path) as partly:
        options = ("--bucket", partly.place)
        with (
            NatsServer(tmp_path) as nats,
            PersistProcess(tmp_path, nats.url, *options, variables=partly.variables) as server,
        ):
            async with World(nats.url) as world, Client(make_bus(nats.url), timeout_s=PATIENCE_S) as client:
                for kind in (b"/packs/", b"/manifest/", b"/journal/"):
                    partly.proxy.hold_at(b"PUT ", kind, half=True)
                    waiting = asyncio.create_task(client.stream("kept").append(kind, level=Level.ARCHIVED))
                    assert await asyncio.to_thread(partly.proxy.is_held.wait, PATIENCE_S)
                    server.kill()
                    await asyncio.to_thread(server.start)
                    await world.until_acked(5)
                    done = await waiting
                await world.check()
                assert done.seq == 3
                values = [one.value async for one in client.stream("s").get_all()]
                async with asyncio.timeout(PATIENCE_S):
                    while not {"s", "kept", "k"} <= partly.packed():  # noqa: ASYNC110 - another process uploads
                        await asyncio.sleep(0.05)
                await client.stream("s").append(b"the last", level=Level.ARCHIVED)
                await asyncio.to_thread(server.stop)
                shutil.rmtree(server.data)
                restore_directory(partly.bucket, str(server.data))
                await asyncio.to_thread(server.start)
                assert [one.value async for one in client.stream("s").get_all()] == [*values, b"the last"]
                assert [one.value async for one in client.stream("kept").get_all()] == [
                    b"/packs/", b"/manifest/", b"/journal/"
                ]  # fmt: skip


@pytest.mark.soak
async def test_servers_that_share_a_bucket_pause_while_it_is_away_and_lose_nothing(tmp_path: Path) -> None:
    async with store(tmp_path) as away:
        with servers(tmp_path, away.place, names="", patience="3s") as made:
            for name in "ab":
                made.make(name, variables=away.variables)
            async with working(made, memory=0) as world:
                away.proxy.cut(refuse=True)
                async with Client(make_bus(made.nats.url), timeout_s=2) as client:
                    await until_refused(client)
                away.proxy.go_on()
                await world.until_acked(5)
                found = await world.servers(shared_by(2))
                made.of(found[0]).kill()
                await world.servers(lambda found: any(one.owned == list(range(SHARDS)) for one in found))
                await world.until_acked(5)
                await world.check()
