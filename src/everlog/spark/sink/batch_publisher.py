"""Publishing a batch so that each row appears once, whoever dies on the way.

A row's packet id follows from its number. Rows go out in windows at QoS 2; when the broker has taken a window over (a
PUBREC each), that is noted on the disk, and only then released (PUBREL). Who comes back finds the note: what lies below
it is not sent again, what lies above is sent under the same packet ids, which the broker's session knows if it has the
message. Rows at QoS 1 and 0 go along; of them a window that was interrupted may appear twice.
"""

import logging
import time
from collections.abc import Callable, Iterator
from itertools import islice

from everlog.base import PeerError, Unavailable, UsageError
from everlog.mqtt import Puback, Pubcomp, Publish, Pubrec, Pubrel, Reason, encode
from everlog.spark.sink.batch_journal import BatchJournal
from everlog.spark.sink.blocking_client import VERSION, Link, LinkLost
from everlog.spark.sink.staged_rows import APP, BATCH, ROW, message, unstage

log = logging.getLogger(__name__)

WINDOW = 2000  # rows in flight at most; a broker may ask for fewer
WINDOW_BYTES = 4 << 20
PACKET_IDS = 60_000  # more than two windows: ids of rows that may be in flight at the same time differ
PAUSE_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

Dial = Callable[[bool], Link]  # with whether to start anew


def packet_id(row: int) -> int:
    """The packet id of a row."""
    return row % PACKET_IDS + 1


def publish_batch(journal: BatchJournal, dial: Dial, qos: int, timeout_s: float) -> int:
    """Publish what is left of the journal's batch; how many rows. A lost connection is made again for so long."""
    assert journal.state is not None
    first, pauses = journal.state.received, iter(PAUSE_S)
    give_up = time.monotonic() + timeout_s
    while True:
        known = journal.state.received
        try:
            rows = _attempt(journal, dial, qos)
            journal.complete()
            return rows - first
        except (LinkLost, PeerError) as error:
            if journal.state.received > known:
                give_up, pauses = time.monotonic() + timeout_s, iter(PAUSE_S)
            if time.monotonic() > give_up:
                raise Unavailable(
                    f"{error}; {journal.state.received} rows of batch {journal.state.batch} are published",
                    hint="start the query again: it goes on from there",
                ) from error
            log.warning("%s; trying again", error)
            time.sleep(next(pauses, PAUSE_S[-1]))


def _attempt(journal: BatchJournal, dial: Dial, qos: int) -> int:
    """Publish on one connection from where the journal stands; how many rows the batch has."""
    state = journal.state
    assert state is not None
    link = dial(not state.begun)
    try:
        in_doubt = 0
        if state.begun:
            if link.session_present:
                _release(link, range(max(0, state.received - WINDOW), state.received))
                in_doubt = state.received + WINDOW
            else:
                log.warning(
                    "the broker forgot the session: up to %d rows of batch %d from row %d on may appear twice",
                    WINDOW,
                    state.batch,
                    state.received,
                )
        journal.begin()
        done = state.received
        marks = ((APP, journal.app), (BATCH, str(state.batch)))
        rows = unstage(journal.paths(), done)
        messages = ((number, message(row, qos, (*marks, (ROW, str(number))))) for number, row in rows)
        for window in _windows(messages, min(WINDOW, link.receive_maximum)):
            done = _send(link, window, in_doubt, journal)
        link.finish()
        return done
    finally:
        link.close()


def _windows(messages: Iterator[tuple[int, Publish]], most: int) -> Iterator[list[tuple[int, Publish]]]:
    """Messages that are in flight together."""
    held: list[tuple[int, Publish]] = []
    size = 0
    for number, packet in messages:
        if held and (len(held) == most or size + len(packet.payload) > WINDOW_BYTES):
            yield held
            held, size = [], 0
        held.append((number, packet))
        size += len(packet.payload)
    if held:
        yield held


def _send(link: Link, window: list[tuple[int, Publish]], in_doubt: int, journal: BatchJournal) -> int:
    """Publish a window; the number behind its last row, which is noted before anything is released."""
    out = []
    waiting: set[int] = set()
    topics: dict[int, str] = {}
    for number, packet in window:
        ident = packet_id(number) if packet.qos else 0
        if packet.qos > link.max_qos:
            raise UsageError(
                f"the broker takes no QoS {packet.qos}", hint=f'set the option "qos" to {link.max_qos}, or the column'
            )
        data = encode(_with_id(packet, ident, number < in_doubt), VERSION)
        if link.max_packet_bytes is not None and len(data) > link.max_packet_bytes:
            raise UsageError(f"row {number} makes a packet of {len(data)} bytes, and the broker takes fewer")
        out.append(data)
        if packet.qos:
            waiting.add(ident)
            topics[ident] = packet.topic
    link.send(b"".join(out))
    refused: list[tuple[str, Reason]] = []

    def taken(ident: int, reason: Reason) -> None:
        if reason.is_error:
            refused.append((topics.get(ident, "?"), reason))

    link.await_answers((Puback, Pubrec), waiting, taken)
    if refused:
        topic, reason = refused[0]
        raise Unavailable(
            f"the broker refuses {len(refused)} rows, the first on {topic}: {reason.name.lower().replace('_', ' ')}"
        )
    stop = window[-1][0] + 1
    journal.receive(stop)
    _release(link, [number for number, packet in window if packet.qos == 2])
    return stop


def _with_id(packet: Publish, ident: int, again: bool) -> Publish:
    return Publish(
        packet.topic, packet.payload, packet.qos, packet.retain, again and packet.qos > 0, ident, packet.properties
    )


def _release(link: Link, rows: "range | list[int]") -> None:
    """Tell the broker that rows will not be sent again; those that it does not know any more are released too."""
    numbers = iter(rows)
    while some := list(islice(numbers, WINDOW)):
        link.send(b"".join(encode(Pubrel(packet_id(number)), VERSION) for number in some))
        link.await_answers((Pubcomp,), {packet_id(number) for number in some}, lambda ident, reason: None)
