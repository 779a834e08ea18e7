"""The broker: what connections ask for, done. It owns the shared tables and brings the parts together."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from logging import DEBUG, ERROR, WARNING

from everlog.base import MessageColumns, PeerError, PublishRun, StorageError, TopicTable
from everlog.broker.acl import Acl
from everlog.broker.audience import Audiences
from everlog.broker.clients import Clients
from everlog.broker.coldreading import ColdReading
from everlog.broker.connection import Connection
from everlog.broker.events import event as report
from everlog.broker.gate import Gate
from everlog.broker.history import History
from everlog.broker.keep import Keep
from everlog.broker.limits import Limits
from everlog.broker.metrics import Metrics
from everlog.broker.partition import distinct_topics, forget_ids
from everlog.broker.persistence import Persistence
from everlog.broker.ports import Log
from everlog.broker.restoring import restore
from everlog.broker.retained import RetainedMessages
from everlog.broker.retention import RetentionState
from everlog.broker.router import Router
from everlog.broker.security import Security
from everlog.broker.sharedgroups import GroupOptions, SharedGroups
from everlog.broker.subscribing import Subscriber
from everlog.broker.wire import Traffic
from everlog.mqtt import (
    NO_PROPERTIES,
    Carried,
    Connect,
    Decoder,
    Properties,
    Publish,
    Reason,
    Subscribe,
    Unsubscribe,
    encode,
)
from everlog.sessions import Session, SessionTables
from everlog.store import ColdStore
from everlog.topics import check_topic_name

BUFFER_BYTES = 256 << 10
_CACHED_TOPICS = 1_000_000  # at least: more than one batch can name, since all of its topics are looked up together
_log = logging.getLogger("everlog.broker")


class Broker:
    """A running broker on one event loop. `start` and `stop` bracket its life."""

    def __init__(
        self,
        log: Log,
        limits: Limits | None = None,
        security: Security | None = None,
        *,
        keep: list[tuple[str, int]] | None = None,
        seed: int = 0,
        tables: SessionTables | None = None,
        cold: ColdStore | None = None,
        groups: GroupOptions | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        limits = limits or Limits()
        self.log = log
        self.limits = limits
        self.metrics = Metrics()
        self.retention = RetentionState()
        self.table = TopicTable(seed, 2 * limits.topics, 2 * limits.topics_bytes + BUFFER_BYTES)
        self.columns = MessageColumns(1024)
        self.carried = Carried(limits.unfinished_bytes, self._unfinished)
        self.buffer = bytearray(BUFFER_BYTES)
        cached = max(limits.topics, _CACHED_TOPICS)
        self.audiences = Audiences(self.table, cached)
        self.keep = Keep(self.table, log.shard_of, cached)
        for text, min_qos in keep or ():
            self.keep.add(text, min_qos)
        self.router = Router(log, self.table, self.audiences, self.keep, self._soon, now_us)
        self.router.max_unwritten_bytes = limits.unwritten_bytes
        self.traffic = Traffic(self.buffer, self.table, self.router, time.monotonic)
        self.traffic.receive_maximum = limits.receive_maximum
        self.traffic.inflight_bytes = limits.inflight_bytes
        self.traffic.topics, self.traffic.topics_bytes = limits.topics, limits.topics_bytes
        self.history = History(log, self.router.ends, cold)
        self.router.delivering.on_over_quota = self.over_quota
        self.groups = SharedGroups(self.router, groups or GroupOptions(), lambda: self.time(), self._soon)
        self.retained = RetainedMessages(limits.retained_messages, limits.retained_bytes)
        self.clients = Clients(self)
        self.persistence = Persistence(tables, self) if tables is not None else None
        if self.persistence is not None:
            self.retained.changed = self.persistence.mark_retained
        self.subscriber = Subscriber(self)
        self.security = security or Security()
        self.traffic.checks = self.acl is not None
        self.now_us = now_us
        self.gate = Gate(self)
        self._own = Decoder(MessageColumns(16), self.table, version=5)
        self._too_slow: dict[Connection, None] = {}
        self._shedding = False
        self._held_back: list[Connection] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self.closing = False

    @property
    def time(self) -> Callable[[], float]:
        """The clock of keep-alives and the like, which connections read too."""
        return self.traffic.time

    @time.setter
    def time(self, clock: Callable[[], float]) -> None:
        self.traffic.time = clock

    @property
    def pending(self) -> int:
        """How many have connected and are not open yet."""
        return len(self.gate.pending)

    @property
    def acl(self) -> Acl | None:
        """The rules of who may publish and subscribe to what; None allows everything."""
        return self.security.acl if self.security.acl_file is not None else None

    def start(self) -> None:
        """Begin on the running event loop."""
        self._loop = loop = asyncio.get_running_loop()
        self.time = loop.time
        self.log.on_commit(lambda shard: None if self.router.committing else self._wake(loop, self._committed))
        self.log.on_failure(lambda shard, error: self._wake(loop, partial(self._log_failed, error)))
        if self.history.cold is not None:
            self.router.pulling.read_cold(ColdReading(self.history.cold, self.history, partial(self._wake, loop)))
        if self.persistence is not None:
            restore(self, self.persistence.tables)
            self.router.attach(self.persistence)
            self.groups.persistence = self.persistence
            self.persistence.start(loop)
            self.clients.sweep(self.time())  # what became due while the broker was down
        self._sweeper = loop.create_task(self._sweep())

    async def stop(self, reason: int = Reason.SERVER_SHUTTING_DOWN) -> None:
        """Finish what is under way, tell every client, and end."""
        self.closing = True
        deadline = self.time() + 10
        for client in self.clients.connections.values():
            client.decoder.drop()  # what clients send from now on is not heard, and sent again
        # The router commits, here too after the packet ids of QoS 2 messages are stored.
        await self._until(lambda: self.router.is_idle, deadline)
        if self.persistence is not None:
            await self.persistence.flush(deadline - self.time())  # so that no answer is held any more
        for connection in [*self.clients.connections.values(), *self.gate.pending]:
            connection.close(reason, "server is shutting down")
        await self._until(lambda: not (self.clients.connections or self.gate.pending), deadline)
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        if self.persistence is not None:
            await self.persistence.stop()
        self.gate.close()
        if self.router.pulling.cold is not None:
            await asyncio.to_thread(self.router.pulling.cold.close)

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        while not condition() and self.time() < deadline:  # noqa: ASYNC110 - only at the end, where it may poll
            await asyncio.sleep(0.005)

    def _soon(self, call: Callable[[], None]) -> object:
        assert self._loop is not None
        return self._loop.call_soon(call)

    def _wake(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended while a commit was under way
            loop.call_soon_threadsafe(call)

    def _log_failed(self, error: StorageError) -> None:
        report(_log, "log_failed", ERROR, reason=error)
        for sink in self.router.log_failed():
            if isinstance(sink, Connection):
                sink.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "the log can't be written")

    def _committed(self) -> None:
        router = self.router
        router.committed()
        if router.behind:
            router.behind = router.is_behind()
        if self._held_back and not router.behind and router.held_bytes < self.limits.inflight_bytes // 2:
            held, self._held_back = self._held_back, []
            for connection in held:
                connection.resume_reading()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1)
            now = self.time()
            self.clients.sweep(now)
            self.groups.sweep(now)
            self.gate.sweep(now)
            self.router.pulling.retry()
            if self.router.pulling.cold is not None:
                self.router.pulling.cold.retry()
            if self.table.name_bytes > self.limits.topics_bytes:  # the log's names count too, and come by themselves
                self.forget_topics()

    # What connections call

    def open(self, connection: Connection, packet: Connect, more: Properties = NO_PROPERTIES) -> None:
        """A client has proven who it is: its session is opened, and the CONNACK says so and what `more` has."""
        will = packet.will
        if will is not None:
            check_topic_name(will.topic, max_levels=self.limits.topic_levels, max_bytes=self.limits.topic_bytes)
            if will.topic.startswith("$"):
                raise PeerError(Reason.TOPIC_NAME_INVALID, "the will's topic is the server's own")
        if (
            will is not None
            and self.acl is not None
            and not self.acl.may_publish(connection.user, packet.client_id, will.topic)
        ):
            raise PeerError(Reason.NOT_AUTHORIZED, "the will's topic is not allowed")
        session, present, properties = self.clients.open(connection, packet, more)
        self.gate.forget(connection)
        self.metrics.connects += 1
        self.router.delivering.sinks[session] = connection
        self.changed(session)
        report(
            _log,
            "connected",
            DEBUG,
            client=session.client_id,
            peer=connection.peer,
            version=packet.version,
            user=connection.user,
            resumed=present,
        )
        connection.opened(session, present, properties)
        if present:
            self.subscriber.resume(session, connection.user)
        connection.proceed()

    def lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self.gate.forget(connection)
        self.metrics.disconnects += 1
        if connection.session is not None:
            reason = connection.closing_reason or "connection lost"
            report(_log, "disconnected", DEBUG, client=connection.client_id, peer=connection.peer, reason=reason)
        self.clients.lost(connection)

    def left(self, session: Session) -> None:
        """A session has no connection any more: nothing is handed to it, and others get what it shared."""
        self.subscriber.leave(session)
        self.router.delivering.sinks.pop(session, None)
        self.router.pulling.forget(session)
        self.groups.left(session)
        self.router.delivering.hand_on(session.give_up_shared())

    def over_quota(self, session: Session) -> None:
        """Too much waits for a client that does not keep up, and none of it may be dropped: it has to go."""
        connection = self.clients.connections.get(session)
        if connection is not None and connection.is_open and connection not in self._too_slow:
            self._too_slow[connection] = None
            self.metrics.over_quota += 1
            report(_log, "limit", WARNING, limit="queue_bytes", client=session.client_id)
            self._soon(self._end_too_slow)  # not while a batch is on its way through the audiences

    def _unfinished(self) -> None:
        """Too much is held of packets that are not whole: whoever holds most has to go, at the end of this turn."""
        if not self._shedding:
            self._shedding = True
            self._soon(self._shed)

    def _shed(self) -> None:
        self._shedding = False
        pending = (one for one in self.gate.pending if isinstance(one, Connection))
        everyone = [*self.clients.connections.values(), *pending]
        everyone.sort(key=lambda connection: connection.decoder.buffered_bytes)
        while everyone and self.carried.total_bytes > self.limits.unfinished_bytes:
            connection = everyone.pop()
            self.metrics.unfinished += 1
            report(_log, "limit", WARNING, limit="unfinished_bytes", client=connection.client_id, peer=connection.peer)
            connection.close(Reason.QUOTA_EXCEEDED, "the most bytes of an unfinished packet")
            connection.decoder.drop()

    def _end_too_slow(self) -> None:
        too_slow, self._too_slow = self._too_slow, {}
        for connection in too_slow:
            connection.close(Reason.QUOTA_EXCEEDED, "too slow for its QoS 1 and 2 messages")

    def ended(self, session: Session) -> None:
        """A session is forgotten: nothing is kept for it."""
        self.groups.ended(session)
        self.subscriber.drop(session)
        self.metrics.count_ended(session.counters)
        if self.persistence is not None and session.kept:
            self.persistence.mark_ended(session)

    def changed(self, session: Session) -> None:
        """What is stored of a session itself has changed."""
        if self.persistence is not None and session.kept:
            self.persistence.mark_session(session)

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        """SUBSCRIBE."""
        self.subscriber.subscribe(connection, packet)

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        """UNSUBSCRIBE."""
        self.subscriber.unsubscribe(connection, packet)

    def set_expiry(self, session: Session, expiry_s: int) -> None:
        """DISCONNECT may change how long the session stays."""
        session.expiry_s = min(expiry_s, self.limits.session_expiry_s)
        self.changed(session)

    def reserve(self, known: int) -> None:
        """Names new since there were `known` that begin with $: section 4.7.2, such topics are the server's own."""
        reserved = self.traffic.reserved
        for topic in range(min(known, len(reserved)), self.table.count):  # the router makes names known too
            reserved.extend(bytes(topic + 1 - len(reserved)))
            reserved[topic] = self.table.name(topic).startswith(b"$")

    def check_publishes(self, connection: Connection, run: PublishRun) -> dict[int, int]:
        """The topics of a run that the client may not publish to, with the reason; those messages are dropped."""
        acl, reserved = self.acl, self.traffic.reserved
        refused: dict[int, int] = {}
        for topic in distinct_topics(run):
            if topic < len(reserved) and reserved[topic]:
                refused[topic] = Reason.NOT_AUTHORIZED
                continue
            if acl is None:
                continue
            allowed = connection.allowed.get(topic)
            if allowed is None:
                name = self.table.name(topic).decode()
                allowed = connection.allowed[topic] = acl.may_publish(connection.user, connection.client_id, name)
            if not allowed:
                refused[topic] = Reason.NOT_AUTHORIZED
        if refused:
            topics = memoryview(run.columns.topics).cast("I")
            for row in range(run.start, run.stop):
                if topics[row] in refused:
                    run.columns.flags[row] |= 0x80
                    self.metrics.refused += 1
        return refused

    def retain(self, connection: Connection, run: PublishRun, refused: dict[int, int] | None) -> dict[int, int] | None:
        """The messages of a run that ask to be retained; one that can't be goes nowhere, and its topic is `refused`."""
        columns = run.columns
        topics = memoryview(columns.topics).cast("I")
        now = self.now_us()
        for row in range(run.start, run.stop):
            if columns.flags[row] & 0x81 == 0x01:
                name = self.table.name(topics[row]).decode()
                if not self.retained.take(run, row, now, self.table, name, connection.client_id):
                    self.metrics.retained_refused += 1
                    report(_log, "limit", WARNING, limit="retained", client=connection.client_id, topic=name)
                    refused = {**(refused or {}), topics[row]: Reason.QUOTA_EXCEEDED}
                    columns.flags[row] |= 0x80
                    if columns.flags[row] & 0x04 and connection.session is not None:  # [MQTT-4.3.3-9]
                        forget_ids(bytes(columns.packet_ids[2 * row : 2 * row + 2]), connection.session.received)
        return refused

    def rules_changed(self) -> None:
        """Users and rules were read anew: they hold for who is connected, too."""
        for session, connection in list(self.clients.connections.items()):
            connection.allowed.clear()
            self.subscriber.revoke(session, connection.user)

    def hold_back(self, connection: Connection) -> None:
        """Too many answers wait for the disk: this client waits too."""
        self.metrics.held_back += 1
        report(_log, "limit", WARNING, limit="inflight_bytes", client=connection.client_id)
        connection.pause_reading()
        self._held_back.append(connection)

    def forget_topics(self) -> None:
        """The table is full: begin anew. Between two reads nobody holds topic ids, so this is when it may be done."""
        self.metrics.table_resets += 1
        self.table.reset()
        self.traffic.reserved = bytearray()
        for connection in self.clients.connections.values():
            connection.allowed.clear()

    def publish(self, packet: Publish) -> None:
        """Publish a message of the broker's own: a will, a `$SYS` topic."""
        known = self.table.count
        events = self._own.feed(encode(packet, 5))
        if self._own.failed:  # the table of topics is full, or the message is wrong: the next one may fare better
            self._own = Decoder(MessageColumns(16), self.table, version=5)
        self.reserve(known)
        for event in events:
            if isinstance(event, PublishRun):
                if event.any_flags & 0x01:
                    self.retained.take(event, 0, self.now_us(), self.table, packet.topic)
                self.router.publish(event)
