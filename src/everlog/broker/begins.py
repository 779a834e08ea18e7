"""Which of a session's overlapping subscriptions count for a row: those that begin at its offset or before.

A replay begins in the past and another subscription at now, so an old message goes by the first alone, with its QoS
and its identifier, and a new one by both.
"""

from collections.abc import Iterator

from everlog.broker.audience import deliver
from everlog.sessions import Delivery, Piece


def begun(piece: Piece, shard: int) -> Iterator[Piece]:
    """The rows of a piece in stretches, each with the delivery of the subscriptions that had begun; others left out."""
    delivery = piece.delivery
    if not delivery.parts:
        piece.skip_below(delivery.until[shard])
        if piece.start < piece.stop:
            yield piece
        return
    bounds = sorted({one.since[shard] if one.since else 0 for one in delivery.parts})
    for number, bound in enumerate(bounds):
        stretch = Piece(piece.records, piece.rows, piece.start, piece.stop, delivery)
        stretch.skip_below(bound)
        if number + 1 < len(bounds):
            rest = Piece(piece.records, piece.rows, stretch.start, piece.stop, delivery)
            rest.skip_below(bounds[number + 1])
            stretch.stop = rest.start
        if stretch.start < stretch.stop:
            stretch.delivery = begun_at(delivery, shard, bound) or delivery
            yield stretch


def begun_at(delivery: Delivery, shard: int, offset: int) -> Delivery | None:
    """How a message at an offset goes; None if no subscription had begun."""
    if not delivery.parts:
        return delivery if not delivery.since or delivery.since[shard] <= offset else None
    parts = [one for one in delivery.parts if not one.since or one.since[shard] <= offset]
    if len(parts) == len(delivery.parts):
        return delivery
    return deliver(delivery.session, parts) if parts else None
