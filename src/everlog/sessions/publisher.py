"""What a session knows of the messages that its client has published: QoS 2 packet ids, and which are its own."""

from collections.abc import Sequence
from typing import TypeAlias

import cython

from everlog.sessions.qos_2_ids import qos_2_ids

if not cython.compiled:
    from everlog.base import PublishRun
    from everlog.sessions.received_ids import ReceivedIds

_NO_END = 1 << 62
_MAX_OWN = 10_000  # stretches of the session's own messages that it must not get; of more, the oldest are forgotten

Unsure: TypeAlias = tuple[int, int, bytes]  # shard, end, QoS 2 ids not known committed


class Publisher:
    """The publishing side of a session."""

    def __init__(self, unsure: list[Unsure] | None = None) -> None:
        self.unsure = [] if unsure is None else unsure
        self.is_bridge = False  # its client is another broker, whose subscriptions all have No Local
        self._own: dict[int, list[tuple[int, int]]] | None = None  # shard -> stretches that it published itself
        self._unknown_own: dict[int, tuple[int, int]] | None = None  # shard -> between which offsets only the log knows
        self._received: ReceivedIds | None = None

    @property
    def received(self) -> ReceivedIds:
        """The QoS 2 packet ids taken from the client and not released; made when first needed."""
        if self._received is None:
            self._received = ReceivedIds()
        return self._received

    @property
    def received_bits(self) -> bytearray | None:
        """The same ids as a bit set, or None while they were never needed."""
        return None if self._received is None else self._received.bits

    def published(self, shard: int, start: int, end: int, floor: int) -> None:
        """Note offsets as its own messages; below `floor` it has been handed everything."""
        if self._own is None:
            self._own = {}
        stretches = [one for one in self._own.get(shard, ()) if one[1] > floor]
        if stretches and stretches[len(stretches) - 1][1] == start:
            start = stretches.pop()[0]
        self._own[shard] = [*stretches[1 - _MAX_OWN :], (start, end)]

    def own(self, shard: int) -> list[tuple[int, int]]:
        """Return the stretches of offsets that it published itself, as far as it may still be handed them."""
        return [] if self._own is None else self._own.get(shard, [])

    def own_is_unknown(self, between: dict[int, tuple[int, int]]) -> None:
        """Note offsets, by shard, of which it does not know whether it published them: before the broker started."""
        self._unknown_own = between

    def published_elsewhere(self, shard: int, floor: int) -> None:
        """Note that another broker appends messages of it to a shard: only the log knows which, from `floor` on."""
        if self._unknown_own is None:
            self._unknown_own = {}
        first, stop = self._unknown_own.get(shard, (floor, 0))
        self._unknown_own[shard] = min(first, floor) if stop > floor else floor, _NO_END

    def unknown_own(self, shard: int) -> tuple[int, int]:
        """Return between which offsets it does not know what it published itself."""
        return (0, 0) if self._unknown_own is None else self._unknown_own.get(shard, (0, 0))

    def drop_duplicates(self, run: PublishRun) -> int:
        """Mark QoS 2 messages that came before as dropped, and remember the ids of the others; return how many were."""
        return self.received.drop_duplicates(run)

    def free_ids(self, ids: bytes) -> int:
        """Forget packet ids (a column) that the client has released; return how many were known."""
        return self.received.discard(ids)

    def release_ids(self, ids: bytes) -> bytes:
        """Forget packet ids (a column) that the client has released; return a byte for each: 1 if it was known."""
        return self.received.release(ids)

    def note_unconfirmed(self, run: PublishRun, new: int, routes: bytearray, ends: list[tuple[int, int]]) -> None:
        """Note the ids of a run with `new` QoS 2 messages, which are stored ahead of the messages themselves.

        `ends` is where the shards that keep some of them end now: a broker that starts knows by the log whether a
        message is there, and so whether its id counts (docs/decisions/qos2-exactly-once.md).
        """
        if new == len(run) and len(ends) == 1:
            self.unsure.append((*ends[0], bytes(run.columns.packet_ids[2 * run.start : 2 * run.stop])))
            return
        ids = qos_2_ids(run, routes)
        self.unsure.extend((shard, end, bytes(ids[shard])) for shard, end in ends if shard in ids)

    def note_refused(self, run: PublishRun, routes: bytearray, ends: list[tuple[int, int]]) -> None:
        """Forget the ids of a run that the log refused, but for the shards that had taken their part by then (`ends`).

        The client sends the run again, and what was not kept must not be taken for a repetition.
        """
        ids = qos_2_ids(run, routes)
        self.unsure.extend((shard, end, bytes(ids.pop(shard))) for shard, end in ends if shard in ids)
        self.free_ids(b"".join(ids.values()))

    def drop_confirmed(self, committed: Sequence[int]) -> None:
        """Forget which ids were stored ahead of messages that are committed by now."""
        if self.unsure:
            self.unsure = [entry for entry in self.unsure if committed[entry[0]] < entry[1]]
