"""Finds out, before a server begins, whether others serve something else on its bus: both would answer."""

import asyncio
import logging

import msgspec

from everlog.base import UsageError
from everlog.bus import (
    HELLO,
    BadFrame,
    Bus,
    Delivery,
    FrameKind,
    NotAllowed,
    Welcome,
    decode_frame,
    encode_frame,
)

_GREETINGS, _EACH_S = 3, 0.3  # a broker's own server starts with the first, and answers a later one
_log = logging.getLogger("everlog.persist")


async def refuse_strangers(bus: Bus, name: str, store: str) -> None:
    """Raise if a server of another store answers on the bus; without a store of one's own every server is another."""
    found: dict[str, Welcome] = {}

    def take(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            try:
                welcome = msgspec.msgpack.decode(decode_frame(delivery.payload).body, type=Welcome)
            except (BadFrame, msgspec.DecodeError):
                continue
            found[welcome.server] = welcome

    place = f"{bus.inbox}/neighbours"
    try:
        subscription = await bus.subscribe(place, take)
    except NotAllowed as error:
        _log.warning("whether others serve on this bus can't be asked: %s", error)
        return
    try:
        for _ in range(_GREETINGS):
            bus.publish(HELLO, encode_frame(FrameKind.HELLO, 1), place)
            await asyncio.sleep(_EACH_S)
    finally:
        subscription.cancel()
    for welcome in found.values():
        if welcome.server != name and (not store or welcome.store != store):
            raise UsageError(
                f"{welcome.server!r} serves other streams on this bus, and both would answer",
                hint="set persist.enabled = false for that broker, stop that server, or use another bus",
            )
