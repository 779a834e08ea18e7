"""Delivery's facade: from a run of arriving PUBLISHes to the log, to the acks and to the subscribers, batch by batch.

A run is appended (what is kept) or gathered for this turn of the event loop (what is not). Acks leave when the log has
committed their messages (`pending_acks`). Committed batches, and the gathered ones, are split by audience in one pass
and written to each live subscriber in one call (`fanout`); who is behind reads the log (`catchup`), and who is behind
on what is in no log has it kept from then on (`spills`).
Invariant: everything below `routed[shard]` has been handed to every live subscriber of that shard.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import cython

from everlog.base import PublisherColumn, PublisherName, name_publisher
from everlog.broker.delivery.catchup import Catchup
from everlog.broker.delivery.own_messages import OwnMessages
from everlog.broker.delivery.ports import Forwarder, Log, SharedGroups, SharedTarget, Sink, WriteBehind
from everlog.broker.delivery.read_rights import ReadRights
from everlog.broker.delivery.retained_messages import RetainedMessages
from everlog.broker.delivery.spills import Spills
from everlog.mqtt import Publish
from everlog.sessions import Session, Subscribed
from everlog.topics import Filter

if not cython.compiled:
    from everlog.base import NOT_KEPT, MessageColumns, PublishRun, Records, TopicTable
    from everlog.base.memory import pointer, u32s
    from everlog.broker.delivery.audiences import Audiences
    from everlog.broker.delivery.fanout import Fanout
    from everlog.broker.delivery.kept_topics import KeptTopics
    from everlog.broker.delivery.pending_acks import AckQueue, PendingAcks
    from everlog.broker.delivery.unkept_messages import UnkeptMessages

_PATIENCE_NS = 2_000_000  # that a turn of the event loop has for all disks; others wait meanwhile
_RETAIN = 0x01
_READ_BYTES = 4 << 20
_LEAST_NAMES, _MOST_NAMES = 2, 128
_MATCHES = 2048  # of new names with filters, before it is another client's turn


class Router:
    """The way of messages through the broker; owned by the event loop's thread."""

    def __init__(
        self,
        log: Log,
        table: TopicTable,
        retained: RetainedMessages,
        soon: Callable[[Callable[[], None]], object],
        now_us: Callable[[], int],
        max_topics: int = 200_000,
        max_unwritten_bytes: int = 64 << 20,
        max_audiences_bytes: int = 64 << 20,
        spill_bytes: int = 0,
        due_us: Callable[[], int] | None = None,
        forwarder: Forwarder | None = None,
    ) -> None:
        self.log = log
        self.table = table
        self.kept = KeptTopics(table, log.shard_of, len(log.shards))
        # Acks wait for a shard of ours to reach an offset, or in a second lane for what we sent to reach a number.
        self.pending = PendingAcks(len(log.shards) * (1 if forwarder is None else 2))
        self.forwarder = forwarder
        self.elsewhere = bytearray(256)  # by shard, whether another broker owns it, or nobody: messages are forwarded
        self.retained = retained
        self.now_us = now_us
        self.due_us = due_us or now_us  # the time by which messages and sessions expire
        self.routed = [shard.committed for shard in log.shards]
        if forwarder is not None:
            retained.saving.reached = lambda: tuple(self.routed)
        self.audiences = Audiences(table, self._target, max_topics, max_audiences_bytes)
        self.spills = Spills(self.kept, log, self.routed, spill_bytes, soon)
        self.fanout = Fanout(self.audiences, self.due_us, self.spills.released)
        self.fanout.on_long = self.spills.too_long
        self.spills.connected = self.fanout.sinks
        self.catchup = Catchup(log, self.fanout, self.routed, soon, retained)
        self.max_unwritten_bytes = max_unwritten_bytes
        self.committing = False  # the router will look by itself: nobody need tell it of a commit
        self.behind = False  # more waits to be written than should, of some shard
        self.hurries = False  # whoever publishes waits for a moment, to whichever shard
        self.late = bytearray(512)  # by lane of `pending`, whether more waits there than should
        self.refusing = bytearray(256)  # by shard, whether its messages can't be kept now: its disk is full or fails
        self.refuses = False  # any of them
        self._full = False  # the disk is, of all shards
        self.messages_in = 0
        self.messages_kept = 0
        self.taken: list[tuple[int, int]] = []  # the shards that took some of the last run, and where each ended
        self.names_per_step = _MOST_NAMES  # new to the broker, that a client may bring before others have their turn
        self.ids_ahead = False  # QoS 2 messages were appended whose ids are to be stored before them
        self.absent_qos_0 = True  # who comes back gets the QoS 0 messages that it missed
        self.names_publishers = True  # it is kept who has published what is kept
        self.own = OwnMessages(table)
        self._soon = soon
        self._shards = self.fanout.shards = list(log.shards)
        self._unkept = UnkeptMessages(self.fanout)
        self._turn_asked = False
        self._now = 0  # the time of the turn that is asked for
        self._write_behind: WriteBehind | None = None
        self._saves = 0  # how often commits wait for packet ids to be stored
        self._groups: SharedGroups | None = None
        self._is_private = False  # the message that is published is for this broker's clients alone

    def use(self, groups: SharedGroups, write_behind: WriteBehind | None, rights: ReadRights | None = None) -> None:
        """Take in the shared groups, where to say which stored sessions have moved, and what they may be sent."""
        self._groups = groups
        self._write_behind = write_behind
        self.fanout.moved = None if write_behind is None else write_behind.moved
        self.fanout.rights = rights

    def _target(self, name: str, pattern: str) -> SharedTarget:
        assert self._groups is not None
        return self._groups.target(name, pattern)

    # Sessions

    def attach(self, session: Session, sink: Sink) -> None:
        """Send what a session gets to `sink` from now on."""
        self.fanout.sinks[session] = sink

    def sink(self, session: Session) -> Sink | None:
        """Return where a session's bytes go; None if it has no connection."""
        return self.fanout.sinks.get(session)

    def detach(self, session: Session) -> None:
        """Hand a session nothing more: it has no connection."""
        self.fanout.sinks.pop(session, None)
        self.fanout.absent.pop(session, None)
        self.catchup.forget(session)
        self.audiences.detach(session)
        self.spills.forget(session)

    def resume(self, session: Session) -> None:
        """Go on with a session that is back: what was under way, then what it missed."""
        if not self.absent_qos_0:
            self.fanout.absent[session] = tuple(self.routed)
        self.catchup.resume(session)

    def acked(self, session: Session) -> None:
        """Hand over what waited for acks of a session, of its own and of its groups."""
        if session.waiting:
            self.catchup.pump(session)
        if session.memberships and self._groups is not None:
            self._groups.acked(session)

    def pump(self, session: Session) -> None:
        """Hand over what waited for room in a session's output."""
        self.catchup.pump(session)
        if session.memberships and self._groups is not None:
            self._groups.pump(session)

    def subscribe(self, session: Session, flt: Filter, one: Subscribed) -> None:
        """Let a connected session get what matches a filter, which is new or has other options."""
        self.audiences.subscribe(session, flt, one)
        self._bound_names()
        self.catchup.changed(session)
        self.spills.subscribed(session)

    def unsubscribe(self, session: Session, flt: Filter) -> None:
        """Let a session get what matches a filter no more."""
        self.audiences.unsubscribe(session, flt)
        self._bound_names()
        self.catchup.changed(session)
        self.spills.unsubscribed(session, flt)

    def _bound_names(self) -> int:
        """Bound how many new names one client may bring at a time by what they cost if every filter matches them."""
        filters = self.audiences.filters
        self.names_per_step = max(_LEAST_NAMES, min(_MOST_NAMES, _MATCHES // (filters if filters > 0 else 1)))
        return 0

    def learn(self, first: int) -> None:
        """Find who gets the messages of the topics from this id on: whoever brings names waits for it, others do not.

        Called after a few of them each time.
        """
        if self.audiences.filters:
            self.audiences.resolve(range(first, self.table.count))

    # The way in

    def publish(
        self,
        run: PublishRun,
        queue: AckQueue | None = None,
        acks: bytes = b"",
        pubacks: int = 0,
        publisher: Session | None = None,
        duplicates: int = 0,
        named: PublisherName | PublisherColumn | None = None,
    ) -> list[tuple[int, int]]:
        """Take a run in; `acks`, `pubacks` of them PUBACKs, leave by `queue` when all that is kept is committed.

        Return, for each shard that keeps some of it, its number and the offset that it ends at now. A `publisher` must
        not get its own messages back. Of the run, `duplicates` came before and may still wait for their commit. What is
        kept is kept with who is `named`, one for the run or a column.
        """
        self.messages_in += run.stop - run.start
        if not self._turn_asked:  # before anything can fail: the time is this turn's, and must not outlive it
            self.ask_turn()
        positions: list[tuple[int, int]] = []
        self.taken = positions
        if self.kept.extend(run):
            if self.kept.began:
                self.kept.began = False
                self._unkept.route()  # what came before its topic was kept goes first
            kept = self._keep(run, positions, publisher, named)
            self.messages_kept += kept
            if kept < run.stop - run.start:
                self._gather(run, self.kept.routes, publisher)
        else:
            self._gather(run, None, publisher)
        if queue is not None and acks:
            self.pending.wait(queue, acks, pubacks, self._awaited(run, positions) if duplicates else positions)
        return positions

    def _awaited(self, run: PublishRun, positions: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return what the acks of a run wait for that has messages which came before: where their shards end, too."""
        marks = self.kept.shards_of(run, 0x80)
        awaited = dict(positions)
        for number, shard in enumerate(self._shards):
            if marks[number] and self.elsewhere[number]:
                assert self.forwarder is not None
                if self.forwarder.numbers[number] > self.forwarder.confirmed[number]:
                    awaited[len(self._shards) + number] = self.forwarder.numbers[number]
            elif marks[number] and shard.end > shard.committed:
                if shard.failure is not None:
                    raise shard.failure
                awaited[number] = shard.end
        return list(awaited.items())

    def retain(self, run: PublishRun, publisher: str | None) -> dict[int, int]:
        """Retain the messages of a run that ask for it; return the rows that can't be, each with its topic id."""
        if self.forwarder is not None:
            return {}  # in a cluster it is retained when it is routed, as on all other brokers
        routes = self.kept.routes if self.kept.extend(run) else None
        return self.retained.take_run(run, self.now_us(), self.table, publisher, routes)

    def send(self, packet: Publish, named: PublisherName | None = None) -> list[tuple[int, int]]:
        """Publish a message of the broker's own: a will, whose client is `named`, or a `$SYS` topic."""
        run = self.own.run(packet)
        if run is None:
            return []
        if run.any_flags & _RETAIN:
            for row in self.retain(run, None):
                run.columns.flags[row] &= ~_RETAIN  # sent on, but not retained, at a start from the log neither
        self._is_private = packet.topic.startswith("$")  # of this broker, not of the cluster
        try:
            return self.publish(run, named=named)
        finally:
            self._is_private = False

    def name_of(self, session: Session) -> PublisherName | None:
        """Return as whose the messages of a session are kept, None if that is not kept."""
        if not self.names_publishers:
            return None
        return PublisherName(name_publisher(session.client_id, session.user))

    def _keep(self, run: PublishRun, positions: list[tuple[int, int]], publisher: Session | None, named: Any) -> int:
        """Append what is kept of a run; return how many that is."""
        routes = self.kept.routes
        first, last = 0, len(self._shards)
        if run.stop - run.start == 1:  # one message is in one shard: the others need not look for it
            topic = u32s(run.columns.topics)[run.start]
            first = pointer(routes)[4 * topic + (pointer(run.columns.flags)[run.start] >> 1 & 3)]
            if first == NOT_KEPT:
                return 0
            last = first + 1
        marks = self.kept.shards_of(run, 0) if last - first > 1 else None
        kept = 0
        for number in range(first, last):
            if marks is not None and not marks[number]:
                continue
            if self.elsewhere[number]:
                kept += self._forward(run, number, positions, publisher, named)
                continue
            shard = self._shards[number]
            taken = shard.append(run.columns, run.start, run.stop, self._now, self.table, routes, number, named)
            if taken:
                kept += taken
                end = shard.end
                positions.append((number, end))
                if self.forwarder is not None:
                    self.forwarder.numbers[number] += taken
                if publisher is not None:
                    floor = publisher.lag.get(number, self.routed[number])
                    publisher.published(number, end - taken, end, floor)
        return kept

    def _forward(
        self, run: PublishRun, number: int, positions: list[tuple[int, int]], publisher: Session | None, named: Any
    ) -> int:
        """Hand what a shard of another broker keeps of a run to the forwarder; return how many messages that is."""
        forwarder = self.forwarder
        assert forwarder is not None
        columns, routes = run.columns, self.kept.routes
        taken = forwarder.forward(columns, run.start, run.stop, self._now, self.table, routes, number, named)
        if taken:
            positions.append((len(self._shards) + number, forwarder.numbers[number]))
            if publisher is not None:
                publisher.published_elsewhere(number, publisher.lag.get(number, self.routed[number]))
        return taken

    def _gather(self, run: PublishRun, routes: bytearray | None, publisher: Session | None) -> int:
        """Take what is not kept of a run, if anybody is there to get it; it is routed by the end of this turn."""
        if self.forwarder is not None and not self._is_private:
            self.forwarder.share(run.columns, run.start, run.stop, self._now, self.table, routes)
        if self.audiences.filters:
            self._unkept.add(run, self._now, self.table, routes, publisher)
        return 0

    def take_shared(self, columns: MessageColumns, count: int, table: TopicTable) -> None:
        """Hand on messages that nothing keeps, which clients of another broker have published."""
        if self.audiences.filters:
            self.ask_turn()
            self._unkept.add_all(columns, count, self._now, table)

    def _turn(self) -> None:
        """Commit what was appended and route what was gathered; called once in each turn of the event loop."""
        self._turn_asked = False
        self.behind = self.is_behind()
        if self.ids_ahead and self._write_behind is not None:
            self.ids_ahead = False
            self._saves += 1
            self._write_behind.when_durable(self._ids_saved)
        elif self._saves == 0:
            self._commit()
        self._unkept.route()

    def _ids_saved(self) -> None:
        """Commit messages whose QoS 2 packet ids are stored by now."""
        self._saves -= 1
        if self._saves == 0 and not self.ids_ahead:  # else what came since waits for its own ids, in a turn to come
            self._commit()

    def _commit(self) -> int:
        self.committing = True
        until_ns = perf_counter_ns() + _PATIENCE_NS
        for shard in self._shards:
            if shard.end > shard.committed:
                shard.commit_here(until_ns)
        if self.forwarder is not None:
            self.forwarder.send()
        self.committing = False  # before the look at what is committed, so that no commit goes unseen
        self.committed()
        return 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was taken in waits for a turn, for packet ids to be stored, or to be answered."""
        return not (self._turn_asked or self.ids_ahead or self._saves) and self.pending.is_empty

    @property
    def is_routed(self) -> bool:
        """Whether everything that was appended is committed and routed, where it can be."""
        shards = zip(self._shards, self.routed, strict=True)
        return all(routed >= shard.end or shard.failure is not None for shard, routed in shards)

    def is_behind(self) -> bool:
        """Return whether more was appended than a shard should have before it, or nothing should be for a moment.

        Who publishes to such a shard waits (`late`), others go on. One that can't be written refuses more instead.
        """
        self.hurries = behind = self.spills.hurries
        refuses = self._full
        forwarder = self.forwarder
        numbers, confirmed = ([], []) if forwarder is None else (forwarder.numbers, forwarder.confirmed)
        for number in range(len(self._shards)):
            shard = self._shards[number]
            much = shard.pending_bytes > self.max_unwritten_bytes
            stuck = much and shard.trouble is not None
            self.late[number] = late = much and not stuck
            behind, refuses = behind or late, refuses or stuck
            if forwarder is not None:
                late = numbers[number] > confirmed[number]
                late = late and forwarder.pending_bytes(number) > self.max_unwritten_bytes
                self.late[len(self._shards) + number] = late
                behind = behind or late
            self.refusing[number] = self._full or stuck
        self.refuses = refuses
        return behind

    def set_full(self, full: bool) -> None:
        """Refuse what would be kept from now on, since the disk is full, or take it again."""
        self._full = full
        self.behind = self.is_behind()

    def ends(self) -> tuple[int, ...]:
        """Return where a subscription that is made now begins in each shard.

        In a cluster that is what is routed: retained messages are as of there.
        """
        if self.forwarder is not None:
            return tuple(self.routed)
        return tuple([shard.end for shard in self._shards])

    # The way out

    def committed(self) -> None:
        """Route what was committed since the last call, and release the acks that waited for it."""
        ends = []
        for number in range(len(self._shards)):
            end = self._shards[number].committed
            ends.append(end)
            if self.routed[number] < end:
                self._route(number, end)
        for number in range(len(ends)):
            self.pending.committed(number, ends[number])
        if self.spills.is_due:
            self.spills.let_go()
        if self.forwarder is not None:
            self.forwarder.committed()

    def forwarded(self, shard: int, number: int) -> None:
        """Release the acks that waited for the owner of a shard to commit what was forwarded up to a number."""
        self.pending.committed(len(self._shards) + shard, number)

    def proofs(self, positions: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return by what it is known later whether the messages that ended at these positions just now are committed.

        That is the offset at which each shard ended, and in a cluster the number of this broker's last message there.
        """
        forwarder = self.forwarder
        if forwarder is None:
            return positions
        shards = [lane % len(self._shards) for lane, _ in positions]
        return [(shard, forwarder.numbers[shard]) for shard in shards]

    def proven(self) -> list[int]:
        """Return for each shard up to where proofs count."""
        if self.forwarder is not None:
            return self.forwarder.confirmed
        return [shard.committed for shard in self._shards]

    def ask_turn(self) -> None:
        """Have what was appended by others than clients committed in this turn of the event loop."""
        if not self._turn_asked:
            self._turn_asked = True
            self._now = self.now_us()
            self._soon(self._turn)

    def failed(self, shard: int) -> list[Sink]:
        """Give up on a shard that can't be written any more; return whose acks will not come."""
        return self.pending.fail(shard)

    def _route(self, number: int, end: int) -> int:
        """Hand what a shard has committed up to `end` to whoever is connected."""
        shard = self._shards[number]
        while self.routed[number] < end:
            at = self.routed[number]
            if self.audiences.filters == 0 and self.forwarder is None:
                self.routed[number] = end
                break
            found = shard.read(at, _READ_BYTES)  # some of it: up to so many bytes, or to the end of a segment
            if not found:  # what was committed can't be read: nobody waits for it for ever
                self.routed[number] = end
            for records in found:
                first = at - records.base_offset
                first = max(first, 0)  # signed from here on: offsets that nothing has may lie before a batch
                if self.forwarder is not None and _asks_to_retain(records, first):
                    self.forwarder.retain(records, first)
                if self.audiences.filters:
                    self.fanout.route(records, first, number)
                self.routed[number] = at = records.end_offset
                if at >= end:
                    break
        return 0


def _asks_to_retain(records: Records, first: int) -> bool:
    """Return whether any message of a batch does, from a row on."""
    raw = pointer(records.data)
    at = records.start + records.layout.flags
    for i in range(at + first, at + records.count):  # noqa: SIM110
        if raw[i] & _RETAIN:
            return True
    return False
