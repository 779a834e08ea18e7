"""Queues on streams: hand messages out, take them back, give up on some. Their state is effects of the stream's shard.

A message is handed out when it is committed, each time with a ticket of its own; whoever acks or gives back names that
ticket, so an answer that comes too late, when the message was handed out again, does nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import msgpack

from everlog.streams import requests
from everlog.streams.effects import Acked, Died, DropQueue, Effect, Record, Revived, SetQueue, Taken
from everlog.streams.fresh import headers_size
from everlog.streams.names import MOST_NAME_BYTES
from everlog.streams.queue_state import QUEUE_EFFECTS, QueueState, take_effect
from everlog.streams.reads import MOST_SEQ, check_kind
from everlog.streams.refusal import Refused
from everlog.streams.replies import Answer, DeadLetter, DeadLetters, Deliveries, Delivery, Lag, Reply, Result, Written
from everlog.streams.row_messages import message_of
from everlog.streams.stored_messages import count_messages, find_row, read_messages
from everlog.streams.stored_rows import DEAD
from everlog.streams.stream_file import StreamFile
from everlog.streams.stream_state import MOST_POSITION, StreamState
from everlog.streams.values import ErrorCode, Kind, Level, QueueConfig, StoredMessage

if TYPE_CHECKING:
    from everlog.streams.state_shard import StateShard

MOST_TAKEN = 10_000  # messages of one take
_DEAD_ROWS = 16  # dead letters read at a time
MOST_QUEUES = 1_000  # of a stream; more are refused
_decode_config = msgpack.Decoder(QueueConfig).decode
_QUEUES = "SELECT queue, config, cursor, acked, ticket FROM queues"

Reach = Callable[[Answer], None]


class Queues:
    """The queues of a shard's streams."""

    def __init__(self, shard: "StateShard") -> None:
        self._shard = shard

    def handle(self, request: Any, answer: Reach) -> None:
        """Take a request on a queue."""
        state = self._shard.existing(request.stream)
        check_kind(state, Kind.STREAM)
        self._load(state)
        if isinstance(request, requests.QueueConfigure):
            self._configure(state, request, answer)
            return
        assert state.queues is not None
        queue = state.queues.get(request.queue)
        if queue is None:
            raise Refused(
                ErrorCode.NOT_FOUND, f"{state.name} has no queue {request.queue!r}", hint="configure it first"
            )
        if isinstance(request, requests.QueueTake):
            self._take(state, queue, request, answer)
        elif isinstance(request, requests.QueueAck):
            seqs = [queue.tickets[ticket] for ticket in request.tickets if ticket in queue.tickets]
            self._write(state, [Acked(request.queue, seqs)] if seqs else [], len(seqs), request.level, answer)
        elif isinstance(request, requests.QueueNack):
            self._nack(state, queue, request, answer)
        elif isinstance(request, requests.QueueRevive):
            seqs = [seq for seq in dict.fromkeys(request.seqs) if seq in queue.dead]
            effects: list[Effect] = [Revived(request.queue, seqs, request.drop)] if seqs else []
            self._write(state, effects, len(seqs), request.level, answer)
        elif isinstance(request, requests.QueueRemove):
            self._write(state, [DropQueue(request.queue)], 1, request.level, answer)
        else:
            read = self._lag if isinstance(request, requests.QueueLag) else self._dead
            work = partial(read, state, request)
            self._shard.when_settled(state, lambda: answer(self._shard.reply(work())), answer)

    def names(self, state: StreamState) -> list[str]:
        """Return the queues of a stream."""
        self._load(state)
        return sorted(state.queues or ())

    def _load(self, state: StreamState) -> None:
        """Read a stream's queues from its file."""
        if state.queues is not None:
            return
        queues: dict[str, QueueState] = {}
        file = self._shard.views.file_of(state) if state.has_queues else None
        if file is not None and file.has("queues"):
            for name, config, cursor, acked, ticket in file.rows(_QUEUES):
                queues[name] = QueueState(_decode_config(config), cursor, acked, ticket)
            for name, seq, *facts in file.rows("SELECT queue, seq, ticket, due_us, deliveries FROM taken"):
                queues[name].take(seq, *facts)
            for name, seq, is_revived in file.rows("SELECT queue, seq, is_revived FROM dead"):
                (queues[name].revived if is_revived else queues[name].dead).add(seq)
        applied = file.applied if file is not None else -1
        for position, record in state.records(MOST_POSITION):
            if position > applied:
                for effect in record.effects:
                    if isinstance(effect, QUEUE_EFFECTS):
                        take_effect(queues, effect)
        state.queues = queues

    def _write(self, state: StreamState, effects: list[Effect], count: int, level: Level, answer: Reach) -> None:
        """Take a decision on a queue; its answer is how many messages it concerned."""
        shard = self._shard
        if level is Level.ARCHIVED:
            raise Refused(ErrorCode.BAD_REQUEST, "queues are not archived by themselves", hint="use the level fsync")
        if not effects:
            facts = (state.last_seq, shard.time_us, state.position, state.position)
            answer(shard.reply(Written(*facts, count=0)))
            return
        record = self._record(state, effects, count)
        shard.decided(state, record, level, answer)

    def _record(self, state: StreamState, effects: list[Effect], count: int, message_id: str | None = None,
                tickets: list[int] | None = None) -> Record:  # fmt: skip
        shard = self._shard
        facts = (shard.epoch, state.position, shard.now(), state.last_seq, state.messages, state.bytes)
        return Record(*facts, effects, message_id, state.last_seq, count, tickets)

    def _configure(self, state: StreamState, request: requests.QueueConfigure, answer: Reach) -> None:
        assert state.queues is not None
        config = request.config
        if len(request.queue.encode()) > MOST_NAME_BYTES:
            raise Refused(
                ErrorCode.BAD_REQUEST, "the queue's name is too long", hint=f"at most {MOST_NAME_BYTES} bytes"
            )
        if not request.queue or config.ack_wait_us <= 0 or config.max_pending <= 0 or config.max_deliveries < 0:
            raise Refused(
                ErrorCode.BAD_REQUEST, "a queue has a name, and ack_wait_us and max_pending above 0", hint="set them"
            )
        if request.queue not in state.queues and len(state.queues) >= MOST_QUEUES:
            raise Refused(ErrorCode.FULL, f"{state.name} has {MOST_QUEUES} queues", hint="remove some")
        cursor = state.last_seq + 1 if request.start_seq is None else request.start_seq
        self._write(state, [SetQueue(request.queue, config, cursor)], 1, request.level, answer)

    # ---- handing out ----

    def _take(self, state: StreamState, queue: QueueState, request: requests.QueueTake, answer: Reach) -> None:
        shard = self._shard
        file = shard.settle(state)
        if request.message_id is not None and self._take_again(state, queue, file, request, answer):
            return
        now_us = shard.now()
        due = sorted(seq for seq, one in queue.taken.items() if one.due_us <= now_us)
        room = min(request.limit, MOST_TAKEN, queue.config.max_pending - len(queue.taken) + len(due))
        chunk = shard.settings.chunk(request.max_bytes)
        effects, found = self._again(queue, file, due, room, request.queue, chunk)
        cursor = queue.cursor
        left = chunk - sum(_cost(message) for message, _ in found)
        if len(found) < room and left > 0:
            fresh = self._fresh(queue, file, room - len(found), left)
            found += [(one, 1) for one in fresh]
            cursor = fresh[-1].seq + 1 if fresh else cursor
        deliveries = []
        for ticket, (message, count) in enumerate(found, queue.ticket + 1):
            deliveries.append(Delivery(ticket, count, message))
        if deliveries:
            again_us = now_us + queue.config.ack_wait_us
            rows = [(one.message.seq, one.ticket, again_us, one.deliveries) for one in deliveries]
            effects.append(Taken(request.queue, cursor, rows))
        if not effects:
            answer(shard.reply(Deliveries([])))
            return
        tickets = [one.ticket for one in deliveries] if request.message_id is not None else None
        record = self._record(state, effects, len(deliveries), request.message_id, tickets)
        shard.decided(state, record, Level.FSYNC, answer, Deliveries(deliveries))

    def _fresh(self, queue: QueueState, file: StreamFile | None, limit: int, chunk: int) -> list[StoredMessage]:
        most = self._shard.settings.value_bytes
        return read_messages(file, max(1, queue.cursor), MOST_SEQ, limit, most, chunk)[0]

    def _again(
        self, queue: QueueState, file: StreamFile | None, due: list[int], room: int, name: str, chunk: int
    ) -> tuple[list[Effect], list[tuple[StoredMessage, int]]]:
        """Return what becomes of messages that are due again: dead, gone from the stream, or handed out again.

        Those that do not fit into a reply wait for the next take.
        """
        most = queue.config.max_deliveries
        dead, gone = [], []
        found: list[tuple[StoredMessage, int]] = []
        for seq in due:
            count = queue.taken[seq].deliveries
            if most and count >= most:
                dead.append((seq, count))
                continue
            if len(found) >= room or chunk <= 0:
                continue
            message = self._message(queue, file, name, seq)
            if message is None:
                gone.append(seq)
            else:
                found.append((message, count + 1))
                chunk -= _cost(message)
        effects: list[Effect] = []
        if dead:
            effects.append(Died(name, dead))
        if gone:
            effects.append(Acked(name, gone))
        return effects, found

    def _message(self, queue: QueueState, file: StreamFile | None, name: str, seq: int) -> StoredMessage | None:
        """Return a message as the stream has it, or as the dead letter that it was."""
        if file is None:
            return None
        most = self._shard.settings.value_bytes
        row = find_row(file, seq, most)
        if row is None and seq in queue.revived:
            row = next((row[2:] for row in file.rows(f"{DEAD} WHERE queue = ?2 AND seq = ?3", (most, name, seq))), None)
        return None if row is None else message_of(row)

    def _take_again(
        self, state: StreamState, queue: QueueState, file: StreamFile | None, request: requests.QueueTake, answer: Reach
    ) -> bool:
        """Answer a take that was done before, by its message id, with what of it is still handed out."""
        shard = self._shard
        shard.load_ids(state)
        assert state.ids is not None
        known = state.ids.get(request.message_id or "")
        if known is None:
            return False
        found = []
        for ticket in known.seqs or ():
            seq = queue.tickets.get(ticket)
            message = None if seq is None else self._message(queue, file, request.queue, seq)
            if seq is not None and message is not None:
                found.append(Delivery(ticket, queue.taken[seq].deliveries, message))
        reply = Reply(shard.epoch, known.position, Level.FSYNC, Deliveries(found))
        shard.when_settled(state, lambda: answer(reply), answer)
        return True

    def _nack(self, state: StreamState, queue: QueueState, request: requests.QueueNack, answer: Reach) -> None:
        if request.delay_us < 0:
            raise Refused(ErrorCode.BAD_REQUEST, "a delay below 0", hint="0 for at once")
        most, due_us = queue.config.max_deliveries, self._shard.now() + request.delay_us
        back, dead = [], []
        for ticket in dict.fromkeys(request.tickets):
            seq = queue.tickets.get(ticket)
            if seq is None:
                continue
            count = queue.taken[seq].deliveries
            if most and count >= most:
                dead.append((seq, count))
            else:
                back.append((seq, 0, due_us, count))
        effects: list[Effect] = []
        if dead:
            effects.append(Died(request.queue, dead))
        if back:
            effects.append(Taken(request.queue, queue.cursor, back))
        self._write(state, effects, len(back) + len(dead), request.level, answer)

    # ---- reading ----

    def _lag(self, state: StreamState, request: requests.QueueLag) -> Result:
        queue, file = self._queue(state, request.queue), self._shard.settle(state)
        now_us = self._shard.now()
        waiting = 0
        if file is not None:
            waiting = count_messages(file, queue.cursor)
        due = [one.due_us for one in queue.taken.values()]
        ready = bool(waiting) and len(queue.taken) < queue.config.max_pending
        next_us = 0 if ready or any(one <= now_us for one in due) else min(due, default=-1)
        delayed = sum(1 for one in queue.taken.values() if not one.ticket)
        pending = len(queue.taken) - delayed
        return Lag(
            request.queue, queue.config, queue.cursor, waiting, pending, delayed, len(queue.dead), queue.acked, next_us
        )

    def _queue(self, state: StreamState, name: str) -> QueueState:
        queue = (state.queues or {}).get(name)
        if queue is None:
            raise Refused(ErrorCode.NOT_FOUND, f"{state.name} has no queue {name!r}", hint="configure it first")
        return queue

    def _dead(self, state: StreamState, request: requests.QueueDead) -> Result:
        file = self._shard.settle(state)
        limit = max(1, min(request.limit, MOST_TAKEN))
        letters: list[DeadLetter] = []
        if file is None or not file.has("dead"):
            return DeadLetters(letters, True)
        query = f"{DEAD} WHERE queue = ?2 AND seq > ?3 AND NOT is_revived ORDER BY seq LIMIT {_DEAD_ROWS}"
        most, room, after = self._shard.settings.value_bytes, self._shard.settings.reply_bytes, request.after_seq
        while True:
            rows = file.rows(query, (most, request.queue, after))
            for row in rows:
                if len(letters) == limit or room <= 0:
                    return DeadLetters(letters, False)
                letters.append(DeadLetter(row[0], row[1], message_of(row[2:])))
                room -= _cost(letters[-1].message)
            if len(rows) < _DEAD_ROWS:
                return DeadLetters(letters, True)
            after = letters[-1].message.seq


def _cost(message: StoredMessage) -> int:
    """Return about how many bytes a message has in a reply."""
    headers = 0 if message.headers is None else headers_size(message.headers)
    return headers if message.is_cut else headers + message.size
