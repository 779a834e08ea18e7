"""`everlog serve --cluster`: one of several brokers with one history; one incarnation after the other in a process.

An incarnation ends whole. When the others have declared it dead, or a shard of its is another's, its connections are
closed, all that it has in memory is dropped, and the process joins anew; what its clients were told was committed.
"""

import asyncio
import gc
import logging
import os
import secrets
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from everlog.app.clock_watch import ClockWatch
from everlog.app.cluster_health import ClusterHealth
from everlog.app.cluster_metrics import ClusterCollector
from everlog.app.cluster_upkeep import ClusterUpkeep, cluster_limits_of, with_shards
from everlog.app.event_loop import loop_factory
from everlog.app.file_limit import FileLimit, raise_file_limit
from everlog.app.listener_urls import all_listeners
from everlog.app.log_lines import set_up_logging
from everlog.app.serve import reload_security, security_of, serve_http
from everlog.app.settings import Settings, groups_of, limits_of, log_arguments
from everlog.app.start_lines import Started, announce
from everlog.app.start_warnings import warnings_of
from everlog.base import EverlogError, StorageError, Unavailable, UsageError
from everlog.broker import Broker, listen
from everlog.cluster import (
    BrokerKeeper,
    ClusterCount,
    ClusterDatabase,
    ClusterForwarder,
    ClusterLog,
    ClusterOwnership,
    ClusterReferrals,
    ClusterSettings,
    GroupClaims,
    GroupHolding,
    LinkKind,
    Links,
    LinkTls,
    NotOwned,
    PostgresTables,
    SessionClaims,
    SessionHolding,
    Store,
    describe,
    find_cluster,
    read_link_tls,
)
from everlog.commitlog import LogSettings, RealDisk
from everlog.mqtt import Reason
from everlog.ownership import Board, Overruled, Replaced
from everlog.store import FreeSpace, read_record, write_record
from everlog.tiering import Bucket, open_bucket

BROKER_FILE = "broker.json"
_AGAIN_S = 0.5  # before the next incarnation joins
_log = logging.getLogger("everlog.cluster")


class BrokerRecord(Struct, frozen=True, kw_only=True):
    """What a broker's directory says: its name among others, and of which cluster the directory is a copy."""

    name: str
    store: int
    version: int = 1


def run(settings: Settings, config: Path | None = None) -> int:
    """Run a broker of a cluster until a signal ends it, or it is drained; the exit code."""
    set_up_logging(settings.logging.level, settings.logging.format)
    file_limit = raise_file_limit()
    gc.set_threshold(2_000, 5, 800)  # as a single broker does
    with ExitStack() as parts:
        here = _Place(settings, file_limit, config, parts)
        for warning in (*warnings_of(settings), file_limit.warning(settings.limits.connections)):
            if warning is not None:
                _log.warning(warning)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(here))
    return 0


class _Place:
    """What all incarnations of this process have in common."""

    def __init__(self, settings: Settings, file_limit: FileLimit, config: Path | None, parts: ExitStack) -> None:
        cluster, data = settings.cluster, settings.log.data
        assert cluster.url is not None
        assert cluster.bucket is not None
        self.settings = settings
        self.file_limit = file_limit
        self.config = config
        try:
            os.makedirs(data, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{data} can't be made: {error}", hint="choose another --data") from error
        parts.callback(RealDisk().lock(os.path.join(data, "lock")).release)
        self.database = ClusterDatabase(cluster.url, cluster.schema, min_standbys=cluster.min_standbys)
        self.bucket: Bucket = open_bucket(cluster.bucket)
        self.store: Store = find_cluster(self.database, self.bucket)
        self.name = _name_of(data, self.store.identity, cluster.name)
        self.watch = ClockWatch(data)
        self.tls = _tls_of(settings)
        self.retention = cluster_limits_of(settings, self.store.shards)
        log = LogSettings(**log_arguments(settings))
        self.log_settings = ClusterSettings(
            tail_bytes=cluster.tail_bytes,
            min_standbys=cluster.min_standbys,
            segment_us=log.segment_us or ClusterSettings().segment_us,
            log=log,
        )


async def _serve(here: _Place) -> None:
    """Be one incarnation after the other."""
    stopping, hurrying = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, stopping, hurrying)
    watching = asyncio.create_task(here.watch.run())
    try:
        while not stopping.is_set():
            try:
                await _be_one(here, stopping, hurrying)
                return
            except Replaced:
                raise
            except (Overruled, Unavailable) as error:
                _log.error("this incarnation is over, the next one joins: %s", error)
            await _first(stopping.wait(), asyncio.sleep(_AGAIN_S))
    finally:
        watching.cancel()


async def _be_one(here: _Place, stopping: asyncio.Event, hurrying: asyncio.Event) -> None:
    """Join, serve until this is over, and leave; raise `Overruled` if the others have given this incarnation up."""
    settings, database, shards = here.settings, here.database, here.store.shards
    async with AsyncExitStack() as parts:  # ended in the opposite order
        log = await asyncio.to_thread(
            ClusterLog.join, os.path.join(settings.log.data, "copy"), database, here.bucket, here.log_settings
        )
        parts.push_async_callback(asyncio.to_thread, log.close)
        links = Links(here.store.identity, 0, here.name, database=database, tls=here.tls)
        host, _, port = settings.cluster.link.rpartition(":")
        await links.start(host.strip("[]"), int(port))
        parts.push_async_callback(links.close)
        about = describe(settings.cluster.client_address or "")
        ownerships = [ClusterOwnership(database, about), ClusterOwnership(database)]
        for one in ownerships:
            parts.push_async_callback(asyncio.to_thread, one.close)
        keeper = BrokerKeeper(
            ownerships,
            log,
            here.name,
            settings.cluster.advertise or links.address,
            shards,
            patience_s=settings.cluster.patience,
        )
        await asyncio.to_thread(log.catch_up)  # as long as that takes: from the join on it must beat
        me = await keeper.join()
        parts.push_async_callback(keeper.stop)
        links.become(me)
        forwarder = ClusterForwarder(log, links, me)
        forwarder.on_lost = partial(_lost, keeper)
        keeper.moves = forwarder
        tables = PostgresTables(database.connect(), me, shards)
        parts.callback(tables.close)
        claims = SessionClaims(database.connect(), me, shards)
        parts.callback(claims.close)
        holding = SessionHolding(claims, links, log.catch_up, keeper.overrule)
        group_claims = GroupClaims(database.connect(), me, shards)
        parts.callback(group_claims.close)
        groups = GroupHolding(group_claims, links, log.catch_up, keeper.overrule)
        await asyncio.to_thread(log.catch_up)
        loop = asyncio.get_running_loop()
        log.begin_use(lambda error: loop.call_soon_threadsafe(keeper.overrule, error))
        broker = Broker(
            log,
            limits_of(settings),
            security_of(settings),
            keep=[("#", 0)],
            never=settings.keep.never,
            publishers=settings.keep.publishers,
            seed=secrets.randbits(64),
            tables=tables,
            groups=groups_of(settings),
            space=FreeSpace((settings.log.data,), settings.log.reserve_bytes),
            now_us=here.watch.clock.now_us,
            due_us=here.watch.clock.due_us,
            forwarder=forwarder,
            holding=holding,
            dealers=groups,
        )
        broker.connections.gate.reserve_files(here.file_limit.files, here.file_limit.reserve)
        forwarder.use(broker.router)
        referrals = ClusterReferrals(keeper, links, lambda: len(broker.registry.clients), settings.cluster.refer_above)
        broker.connections.gate.referrals = referrals
        ending = _Ending(broker, holding, groups)
        broker.start()
        parts.push_async_callback(ending.stop)
        health = ClusterHealth(keeper, shards, settings.cluster.patience)
        _follow_board(keeper, links, health)
        await keeper.start()
        await _until_owned(keeper, shards, stopping)
        listening = await listen(broker.connections, all_listeners(settings))
        parts.callback(listening.close)
        count = ClusterCount(keeper, log, links, forwarder, holding, database, ownerships[0])
        collectors = [ClusterCollector(count.take)]
        url = await serve_http(settings, broker, listening, here.watch.clock, parts, health.checks, collectors)
        topics = broker.sys_topics(settings.sys.interval)
        topics.start()
        parts.push_async_callback(topics.stop)
        parts.callback(asyncio.create_task(referrals.run()).cancel)
        upkeep = ClusterUpkeep(log, database, here.bucket, here.retention, tables.stored_retained)
        parts.callback(asyncio.create_task(upkeep.run(broker, settings.log.data, here.watch.clock.due_us)).cancel)
        loop.add_signal_handler(signal.SIGHUP, reload_security, broker, listening)
        kept_bytes = here.retention.shard_bytes
        announce(
            with_shards(settings, shards),
            Started([str(address) for address in listening.addresses()], url, kept_bytes, here.config),
        )
        print(f"{here.name} is incarnation {me} of the cluster; links at {links.address}", flush=True)
        try:
            await _first(stopping.wait(), keeper.wait())
            if stopping.is_set():
                referrals.is_leaving = True
                await _first(hurrying.wait(), keeper.drain())
        except Overruled:
            ending.is_overruled = True
            raise


def _lost(keeper: BrokerKeeper, error: EverlogError) -> None:
    """End the incarnation if a shard was fenced; one that was let go of in order is no loss."""
    if not isinstance(error, NotOwned):
        keeper.overrule(error)


class _Ending:
    """How a broker ends: in order, or at once if nothing that it does counts any more."""

    def __init__(self, broker: Broker, holding: SessionHolding, groups: GroupHolding) -> None:
        self.is_overruled = False
        self._broker = broker
        self._holding = holding
        self._groups = groups

    async def stop(self) -> None:
        """End the broker."""
        if self.is_overruled:
            self._holding.is_over = self._groups.is_over = True
            if self._broker.write_behind is not None:
                self._broker.write_behind.is_over = True
            self._broker.connections.close_all(Reason.SERVER_SHUTTING_DOWN, "the broker was overruled")
        await self._broker.stop()


def _follow_board(keeper: BrokerKeeper, links: Links, health: ClusterHealth) -> None:
    """Be linked with the members, tell them when something moves, and look at once when they say so."""

    def told() -> None:
        for incarnation in list(links.living):
            links.tell(incarnation, LinkKind.MOVED, b"")

    async def heard(asker: int, body: bytes) -> bytes:
        keeper.wake()
        return b""

    def changed(incarnation: int, is_open: bool) -> None:
        if not is_open:
            keeper.suspect(incarnation)

    def follow(board: Board) -> None:
        links.update(board.members)
        health.look(board)

    keeper.on_moved, keeper.on_board = told, follow
    links.answer(LinkKind.MOVED, heard)
    links.watch(changed)


async def _until_owned(keeper: BrokerKeeper, shards: int, stopping: asyncio.Event) -> None:
    """Wait until each shard has a living owner: clients that come before it would only wait."""

    async def owned() -> None:
        while not all(keeper.owner_of(shard) for shard in range(shards)):  # noqa: ASYNC110 - of a thread too
            await asyncio.sleep(0.02)

    await _first(stopping.wait(), keeper.wait(), owned())


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of some; raise what it raises."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()


def _stop(stopping: asyncio.Event, hurrying: asyncio.Event) -> None:
    """The first signal drains the broker, the second ends it in order without waiting for others, the third at once."""
    if hurrying.is_set():
        os._exit(1)
    (hurrying if stopping.is_set() else stopping).set()


def _name_of(data: str, store: int, wanted: str | None) -> str:
    """Return the broker's name, which its directory keeps; refuse a directory that is a copy of something else."""
    known = read_record(data, BROKER_FILE, BrokerRecord, (1,), "remove the directory: it is a copy")
    if known is None and os.path.exists(os.path.join(data, "sessions.db")):
        raise UsageError(f"{data} is the directory of a single broker", hint="choose another --data")
    if known is not None and known.store != store:
        raise UsageError(f"{data} is a copy of another cluster", hint="choose another --data, or remove it")
    name = wanted or (known.name if known is not None else f"broker-{secrets.token_hex(4)}")
    if known is None or known.name != name:
        write_record(data, BROKER_FILE, BrokerRecord(name=name, store=store))
    return name


def _tls_of(settings: Settings) -> LinkTls | None:
    cluster = settings.cluster
    if cluster.cert_file is None or cluster.key_file is None or cluster.ca_file is None:
        return None
    return read_link_tls(cluster.cert_file, cluster.key_file, cluster.ca_file)
