"""The inside of a running broker, for tests: the only module here that knows how the broker's parts hang together."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from everlog.broker import Broker, Connection, GroupState
from everlog.broker.delivery.kept_topics import SPILLED
from everlog.mqtt import Connect, Publish
from everlog.sessions import Session, StoredSession, Subscribed
from everlog.topics import parse_filter

FLUSH_S = "everlog.broker.connection.output._FLUSH_S"  # for monkeypatch: the time for a client's last bytes


class _WatchedSink:
    """A sink that shows what is written to it."""

    def __init__(self, sink: Any, seen: Callable[[bytes], None]) -> None:
        self._sink = sink
        self._seen = seen

    def write(self, data: bytes) -> None:
        self._seen(data)
        self._sink.write(data)

    def answer(self, acks: bytes, pubacks: int) -> None:
        self._sink.answer(acks, pubacks)


class _WatchedSinks(dict[Session, Any]):
    """The sinks of sessions, each one watched."""

    def __init__(self, seen: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._seen = seen

    def __setitem__(self, session: Session, sink: Any) -> None:
        super().__setitem__(session, _WatchedSink(sink, partial(self._seen, session.client_id)))


class Inside:
    """What tests see of a broker, and do to it, that no client can. Call it on the broker's own thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # Sessions

    @property
    def sessions(self) -> dict[str, Session]:
        """The sessions that are awake, by client id."""
        return self._broker.registry.sessions

    @property
    def asleep(self) -> dict[str, bytes]:
        """The sessions that are away and saved, by client id."""
        return self._broker.registry.asleep

    @property
    def session_count(self) -> int:
        """How many sessions there are, awake or asleep."""
        return len(self._broker.registry)

    @property
    def stored_count(self) -> int:
        """How many of them count against `limits.sessions`."""
        return self._broker.registry.stored

    def wake(self, client_id: str) -> Session | None:
        """Return the session of a client id, woken if it was asleep."""
        return self._broker.registry.find(client_id)

    def add_session(self, session: Session) -> None:
        """Add a session that no client has opened."""
        self.sessions[session.client_id] = session

    def add_asleep(self, found: StoredSession) -> None:
        """Add a session that is away, as the tables have it."""
        self._broker.registry.put_asleep(found)

    def forget_sessions(self) -> None:
        """Forget what `add_session` and `add_asleep` have added."""
        self.sessions.clear()
        self.asleep.clear()

    # Connections

    @property
    def connections(self) -> list[Connection]:
        """The connections that have a session."""
        return list(self._broker.registry.clients.values())

    @property
    def connected_sessions(self) -> list[Session]:
        """The sessions whose clients are connected."""
        return list(self._broker.registry.clients)

    @property
    def connected_ids(self) -> set[str]:
        """The client ids that are connected."""
        return {session.client_id for session in self._broker.registry.clients}

    @property
    def is_clearing(self) -> bool:
        """Whether something of clients that have left is still to be cleared away."""
        return bool(self._broker.connections._gone) or self._broker.registry.is_ending

    @property
    def pending(self) -> int:
        """How many peers have connected and have no session yet."""
        return len(self._broker.connections.gate.pending)

    @property
    def is_verifying(self) -> bool:
        """Whether a password is being checked."""
        return bool(self._broker.connections.gate.logins)

    @property
    def unfinished_bytes(self) -> int:
        """How much is held of packets that are not whole, for all clients."""
        return self._broker.connections.carried.total_bytes

    @property
    def bytes_out(self) -> int:
        """How much was sent to all clients."""
        return self._broker.connections.traffic.bytes_out

    def connection(self, client_id: str) -> Connection:
        """Return the connection of a client."""
        return self._broker.registry.clients[self.sessions[client_id]]

    def connect_packet(self, client_id: str) -> Connect:
        """Return the CONNECT that a client has sent."""
        packet = self.connection(client_id).connect
        assert packet is not None
        return packet

    def transport(self, client_id: str) -> asyncio.Transport:
        """Return the transport of a client's connection."""
        transport: asyncio.Transport | None = self.connection(client_id).output.transport
        assert transport is not None
        return transport

    def unsent_bytes(self, client_id: str) -> int:
        """Return how much waits for a client to read."""
        return self.connection(client_id).output.unsent_bytes()

    def waits_its_turn(self, client_id: str) -> bool:
        """Return whether packets that a client has sent wait for the next turn of the loop."""
        return self.connection(client_id).reader.is_waiting

    def close(self, client_id: str, reason: int, why: str) -> None:
        """End a client's connection."""
        self.connection(client_id).close(reason, why)

    # What the second hand does

    def set_clock(self, clock: Callable[[], float]) -> None:
        """Set the clock of keep-alives, of limits by the second and of deadlines."""
        self._broker.connections.traffic.time = clock

    def sweep_clients(self, after_s: float = 0.0) -> None:
        """Do what is due so much later: wills, sessions that expire, clients that fell silent."""
        self._broker.registry.sweep(self._broker.time() + after_s)

    def sweep_groups(self, after_s: float = 0.0) -> None:
        """Do what is due so much later in shared groups: messages not acknowledged in time, reads that failed."""
        self._broker.groups.sweep(self._broker.time() + after_s)

    def sweep_pending(self, after_s: float = 0.0) -> None:
        """Do what is due so much later with peers that have no session yet."""
        self._broker.connections.gate.sweep(self._broker.time() + after_s)

    def stop_sweeping(self) -> None:
        """Stop the second hand: from now on only the test sweeps."""
        assert self._broker._sweeper is not None
        self._broker._sweeper.cancel()

    # Messages

    @property
    def routed(self) -> list[int]:
        """Up to where each shard was handed to subscribers."""
        return self._broker.router.routed

    @property
    def messages_kept(self) -> int:
        """How many messages went to the log."""
        return self._broker.router.messages_kept

    @property
    def lost(self) -> int:
        """How many messages sessions were owed that the log did not have any more."""
        return self._broker.router.catchup.lost

    @property
    def live_subscriptions(self) -> int:
        """How many subscriptions connected clients have."""
        return self._broker.router.audiences.filters

    @property
    def sink_count(self) -> int:
        """How many sessions can be sent to."""
        return len(self._broker.router.fanout.sinks)

    def keep(self, text: str) -> None:
        """Have what matches a filter kept from now on, as if a durable session asked for it."""
        self._broker.router.kept.add(text)

    def keep_no_more(self, text: str) -> None:
        """Take back one `keep`."""
        self._broker.router.kept.remove(text)

    @property
    def retained_unsaved(self) -> bool:
        """Whether there are retained messages that only the log has."""
        return self._broker.router.retained.saving.waits

    @property
    def retained_at(self) -> tuple[int, ...]:
        """Up to where in each shard the tables have the retained messages."""
        return self._broker.router.retained.saving.durable_at

    @property
    def retained_count(self) -> int:
        """How many retained messages there are."""
        return len(self._broker.router.retained)

    @property
    def topics(self) -> set[bytes]:
        """The topic names that are known."""
        return set(self._broker.router.table.all_names())

    @property
    def topic_bytes(self) -> int:
        """How much memory the topic names take."""
        return self._broker.router.table.name_bytes

    @property
    def cold_failures(self) -> int:
        """How many reads of the cold store have failed."""
        assert self._broker.router.catchup.cold is not None
        return self._broker.router.catchup.cold.failures

    @property
    def cold_waits(self) -> int:
        """How many times a session had to wait before the cold store was read for it."""
        assert self._broker.router.catchup.cold is not None
        return self._broker.router.catchup.cold.waits

    @property
    def is_cold_idle(self) -> bool:
        """Whether nothing is asked of the cold store, or kept of its answers."""
        assert self._broker.router.catchup.cold is not None
        return not self._broker.router.catchup.cold._questions

    def kept_filters(self) -> list[tuple[str, int]]:
        """Return the filters whose messages are kept, each with its lowest QoS."""
        return self._broker.router.kept.filters()

    def spilled_filters(self) -> list[str]:
        """Return the filters that are kept for clients that were too slow."""
        return [text for text, lowest in self.kept_filters() if lowest == SPILLED]

    def publish(self, packet: Publish) -> None:
        """Publish a message of the broker's own."""
        self._broker.router.send(packet)

    def watch_sent(self, seen: Callable[[str, bytes], None]) -> None:
        """Have `seen` called with the client id and the bytes of messages, from now on, when they are sent."""
        fanout = self._broker.router.fanout
        fanout.sinks = _WatchedSinks(seen)

    def spoil_own_messages(self) -> None:
        """Make the next message of the broker's own fail."""
        self._broker.router.own._decoder.feed(b"\x00\x00")

    # Shared groups

    @property
    def group_lost(self) -> int:
        """How many messages groups were owed that the log did not have any more."""
        return self._broker.groups.counters.lost

    @property
    def group_timeouts(self) -> int:
        """How many messages members did not acknowledge in time."""
        return self._broker.groups.counters.timeouts

    @property
    def group_redelivered(self) -> int:
        """How many messages went to a second member."""
        return self._broker.groups.counters.redelivered

    def group_states(self) -> list[GroupState]:
        """Return every shared group in numbers."""
        return self._broker.groups.states()

    def group_positions(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """Return up to where each durable group needs nothing any more, by name and filter."""
        groups = self._broker.groups._durable
        return {key: one.cursor.floors(one.reads_on()) for key, one in groups.items()}

    def begin_group(self, session: Session, text: str, since: tuple[int, ...]) -> None:
        """Subscribe a session to a durable group that begins at these positions."""
        flt = parse_filter(text)
        one = Subscribed(text, 1)
        session.subscribe(one)
        self._broker.groups.join(session, flt, one, since=since)
        self._broker.router.subscribe(session, flt, one)

    # Session tables, rules, the end

    @property
    def write_failures(self) -> int:
        """How many times the session tables could not be written."""
        assert self._broker.write_behind is not None
        return self._broker.write_behind.failures

    async def save(self) -> None:
        """Wait until all that has changed in sessions is durable."""
        assert self._broker.write_behind is not None
        assert await self._broker.write_behind.flush(20)

    def reload(self) -> None:
        """Read users and rules anew, also for who is connected."""
        self._broker.security.prepare()()
        self._broker.connections.rules_changed()

    @property
    def closing(self) -> bool:
        """Whether the broker is about to stop."""
        return self._broker.closing

    @closing.setter
    def closing(self, is_closing: bool) -> None:
        self._broker.connections.gate.is_closing = is_closing

    async def kill(self) -> None:
        """End the broker's tasks and threads and nothing else: no client is told, nothing is flushed."""
        self.stop_sweeping()
        assert self._broker._sweeper is not None
        with contextlib.suppress(asyncio.CancelledError):
            await self._broker._sweeper
        if self._broker.write_behind is not None:
            await self._broker.write_behind.stop()
        self._broker.connections.gate.close()
