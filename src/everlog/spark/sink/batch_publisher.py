"""Publishes a batch so that each row appears once, wherever the publisher is stopped.

A row's packet id follows from its number. Rows go out in windows at QoS 2; when the broker has taken a window over (a
PUBREC for each row), that is noted on the disk, and only then are the rows released (PUBREL). A publisher that comes
back finds the note: rows below it are not sent again, rows above it are sent under the same packet ids, by which the
broker's session knows those that it has. Rows at QoS 1 and 0 go along; a window of those that was interrupted may
appear twice.
"""

import logging
import time
from collections.abc import Callable, Iterator

from everlog.base import PeerError, Unavailable
from everlog.mqtt import Publish
from everlog.spark.sink.batch_journal import BatchJournal
from everlog.spark.sink.blocking_client import BlockingClient, ConnectionLost
from everlog.spark.sink.staged_rows import APP, BATCH, ROW, make_publish, unstage

log = logging.getLogger(__name__)

WINDOW = 2000  # rows in flight at most; a broker may ask for fewer
WINDOW_BYTES = 4 << 20
PACKET_IDS = 60_000  # more than two windows: ids of rows that may be in flight at the same time differ
PAUSE_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

Dial = Callable[[bool], BlockingClient]  # connects; the argument says whether with a clean start


def packet_id(row: int) -> int:
    """Return the packet id of a row."""
    return row % PACKET_IDS + 1


def publish_batch(journal: BatchJournal, dial: Dial, qos: int, timeout_s: float) -> int:
    """Publish what is left of the journal's batch and return how many rows that was.

    A connection that is lost is made again; after `timeout_s` without progress that is given up.
    """
    assert journal.state is not None
    first, pauses = journal.state.received, iter(PAUSE_S)
    give_up = time.monotonic() + timeout_s
    while True:
        known = journal.state.received
        try:
            rows = _attempt(journal, dial, qos)
            journal.complete()
            return rows - first
        except (ConnectionLost, PeerError) as error:
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
    """Publish on one connection from where the journal stands; returns how many rows the batch has."""
    state = journal.state
    assert state is not None
    client = dial(not state.begun)
    try:
        in_doubt = 0
        if state.begun:
            if client.session_present:
                noted = range(max(0, state.received - WINDOW), state.received)
                client.session.release(map(packet_id, noted))  # those that the broker no longer knows too
                client.wait_until(lambda: not client.session.in_flight)
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
        packets = (
            (number, make_publish(row, qos, packet_id(number), number < in_doubt, (*marks, (ROW, str(number)))))
            for number, row in unstage(journal.paths(), done)
        )
        for window in _windows(packets, min(WINDOW, client.session.window)):
            done = _send(client, window, journal)
        client.finish()
        return done
    finally:
        client.close()


def _windows(packets: Iterator[tuple[int, Publish]], most: int) -> Iterator[list[tuple[int, Publish]]]:
    """Yield the packets that are in flight together."""
    held: list[tuple[int, Publish]] = []
    size = 0
    for number, packet in packets:
        if held and (len(held) == most or size + len(packet.payload) > WINDOW_BYTES):
            yield held
            held, size = [], 0
        held.append((number, packet))
        size += len(packet.payload)
    if held:
        yield held


def _send(client: BlockingClient, window: list[tuple[int, Publish]], journal: BatchJournal) -> int:
    """Publish a window and return the number behind its last row, which is noted before anything is released."""
    session = client.session
    for _, packet in window:
        session.publish(packet)
    client.wait_until(lambda: not session.unanswered)
    if client.refused:
        packet, reason = client.refused[0]
        raise Unavailable(f"the broker refuses {len(client.refused)} rows, the first on {packet.topic}: {reason.words}")
    stop = window[-1][0] + 1
    journal.receive(stop)
    session.release()
    client.wait_until(lambda: not session.in_flight)
    return stop
