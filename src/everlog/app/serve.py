"""Builds a broker from its parts and runs it until a signal ends it. The only place that knows all of them."""

import asyncio
import gc
import logging
import os
import secrets
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from everlog import _kernels
from everlog.app.clock_watch import ClockWatch
from everlog.app.cold_tier import cold_tier
from everlog.app.decoy_key import read_decoy_key
from everlog.app.event_loop import loop_factory
from everlog.app.file_limit import FileLimit, raise_file_limit
from everlog.app.listener_urls import all_listeners
from everlog.app.log_lines import set_up_logging
from everlog.app.persistence import BesideBroker
from everlog.app.plugins import load_methods
from everlog.app.retention_loop import RetentionLoop, RetentionOptions
from everlog.app.settings import (
    DEFAULT_HTTP_PORT,
    Settings,
    classes_of,
    groups_of,
    keep_rules_of,
    limits_of,
    log_arguments,
)
from everlog.app.start_lines import Started, announce
from everlog.app.start_warnings import warnings_of
from everlog.base import EverlogError
from everlog.broker import Broker, Event, ExpiryClock, Listening, Security, listen
from everlog.commitlog import LogSettings
from everlog.sessions import JournaledTables
from everlog.store import ColdStore, FreeSpace, LogStore, place_shards, write_keep_rules
from everlog.web import Check, clock_is_believed, disk_has_room, is_listening, log_is_writable, not_stopping, start_web

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

_log = logging.getLogger("everlog")


def run(settings: Settings, config: Path | None = None) -> int:
    """Run a broker, with settings from this file if there is one; the exit code."""
    set_up_logging(settings.logging.level, settings.logging.format)
    file_limit = raise_file_limit()
    # What messages make dies by itself; what lives, sessions and names, is many. The first two steps of a collection
    # look at 2,000 and 10,000 objects, less than a millisecond and one; the third looks at all, and so is rare.
    gc.set_threshold(2_000, 5, 800)
    with ExitStack() as parts:
        log = settings.log
        limits = LogSettings(**log_arguments(settings))
        place_shards(log.data, log.shards, log.directories)
        store = LogStore.open(log.data, limits, shards=log.shards, classes=classes_of(settings))
        parts.callback(store.close)
        write_keep_rules(log.data, keep_rules_of(settings))
        tables = JournaledTables(os.path.join(log.data, "sessions.db"), sync=log.durability == "fsync")
        parts.callback(tables.close)
        cold = cold_tier(log.data, store.identity)
        if cold is not None:
            parts.callback(cold.close)
        kernels = "compiled" if os.environ.get("EVERLOG_PURE") == "1" else _kernels.describe()  # else it is meant
        for warning in (*warnings_of(settings, kernels), file_limit.warning(settings.limits.connections)):
            if warning is not None:
                _log.warning(warning)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, store, tables, cold, ClockWatch(log.data), file_limit, config))
    _log.info(Event("stopped", {}))
    return 0


def security_of(settings: Settings) -> Security:
    """Return who may do what, by the settings' files."""
    return Security(
        allow_anonymous=settings.allows_anonymous,
        password_file=settings.security.password_file,
        acl_file=settings.security.acl_file,
        methods=load_methods(settings.security.authentication_methods),
        decoy_key=None if settings.security.password_file is None else read_decoy_key(settings.log.data),
    )


async def _serve(
    settings: Settings,
    store: LogStore,
    tables: JournaledTables,
    cold: ColdStore | None,
    watch: ClockWatch,
    file_limit: FileLimit,
    config: Path | None,
) -> None:
    broker = Broker(
        store,
        limits_of(settings),
        security_of(settings),
        keep=[(text, settings.keep.min_qos) for text in settings.keep.filters],
        never=settings.keep.never,
        aged=tuple(settings.retention.classes),
        publishers=settings.keep.publishers,
        seed=secrets.randbits(64),
        tables=tables,
        cold=cold,
        groups=groups_of(settings),
        space=FreeSpace((settings.log.data, *settings.log.directories), settings.log.reserve_bytes),
        now_us=watch.clock.now_us,
        due_us=watch.clock.due_us,
    )
    broker.connections.gate.reserve_files(file_limit.files, file_limit.reserve)
    stopping = asyncio.Event()
    async with AsyncExitStack() as parts:  # ended in the opposite order
        broker.start()
        parts.push_async_callback(broker.stop)
        if settings.persist.enabled and settings.persist.bus is None and settings.persist.storage is None:
            persistence = BesideBroker(broker, settings)
            persistence.arm()
            parts.push_async_callback(persistence.stop)
        listening = await listen(broker.connections, all_listeners(settings))
        parts.callback(listening.close)
        url = await serve_http(settings, broker, listening, watch.clock, parts)
        topics = broker.sys_topics(settings.sys.interval)
        topics.start()
        parts.push_async_callback(topics.stop)
        options = RetentionOptions(settings.log.data, settings.retention.await_table, cold is not None)
        spills = broker.router.spills
        retained_at = None if broker.write_behind is None else broker.write_behind.retained_at
        loop = RetentionLoop(
            store, broker.reports.unread_loss, options, watch.clock.due_us, spills=spills, retained_at=retained_at
        )
        for task in (loop.run(), watch.run()):
            parts.callback(asyncio.create_task(task).cancel)
        _on_signals(stopping, broker, listening)
        kept_bytes = store.shards[0].settings.retention_bytes
        announce(settings, Started([str(address) for address in listening.addresses()], url, kept_bytes, config))
        gc.freeze()  # modules and tables stay: no collection need walk them
        await stopping.wait()


async def serve_http(
    settings: Settings,
    broker: Broker,
    listening: Listening,
    clock: ExpiryClock,
    parts: AsyncExitStack,
    more_checks: Sequence[Check] = (),
    collectors: Sequence["Collector"] = (),
) -> str | None:
    """Metrics and health; None when nothing listens."""
    http = settings.http
    if http.port is None:
        return None
    checks = [not_stopping(lambda: broker.closing), is_listening(listening), log_is_writable(broker.log)]
    checks += [disk_has_room(broker.space), *more_checks]
    warnings = [clock_is_believed(lambda: clock.is_believed)]
    port, must = http.port or DEFAULT_HTTP_PORT, bool(http.port)
    web = await start_web(
        broker.reports,
        http.host,
        port,
        must=must,
        names_clients=http.client_ids,
        checks=checks,
        warnings=warnings,
        collectors=collectors,
    )
    if web is None:
        return None
    parts.push_async_callback(web.close)
    return web.url


def _on_signals(stopping: asyncio.Event, broker: Broker, listening: Listening) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, stopping)
    loop.add_signal_handler(signal.SIGHUP, reload_security, broker, listening)


def _stop(stopping: asyncio.Event) -> None:
    """The first signal ends the broker in order, the second at once."""
    if stopping.is_set():
        os._exit(1)
    stopping.set()


def reload_security(broker: Broker, listening: Listening) -> None:
    """Users, rules and certificates anew, all of them or, if one file can't be used, none."""
    try:
        changes = [broker.security.prepare(), listening.prepare_certificates()]
    except EverlogError as error:
        _log.error("nothing reloaded, the old users, rules and certificates stay: %s", error)
        return
    for put_in_force in changes:
        put_in_force()
    broker.connections.rules_changed()
    _log.info("reloaded users, rules and certificates")
