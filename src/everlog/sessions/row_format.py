# cython: boundscheck=True, wraparound=True, cdivision=False
"""The binary values in the columns of session tables, and a whole session as one byte string.

`docs/formats/session-tables.md` describes the stored ones. A whole session is packed only in memory, where a client
that is away costs one byte string instead of a tree of objects.
"""

import re
import struct
from array import array
from collections.abc import Iterable, Sequence

import msgspec

from everlog.base import PeerError, StorageError
from everlog.mqtt import Connect, Will, decode, encode, pack_pairs, read_fixed_header, unpack_pairs
from everlog.sessions.group_cursor import Owed
from everlog.sessions.received_ids import ID_SET_BYTES
from everlog.sessions.retained_feed import RetainedFeed
from everlog.sessions.subscription import Subscribed
from everlog.sessions.tables import StoredSession, SubscriptionRow

_STRETCH = struct.Struct("<HH")
_UNSURE = struct.Struct("<BQI")
_INFLIGHT = struct.Struct("<HBQ")
INFLIGHT_BYTES = _INFLIGHT.size
_OWED = struct.Struct("<QHHH")
_SIZE = struct.Struct("<H")
_FEED = struct.Struct("<IIH")
_MOST_DEALS = 0xFFFF
_NOT_ZERO = re.compile(rb"[^\x00]+")


def pack_ids(bits: bytes | bytearray | None) -> bytes:
    """Return a set of packet ids (a bit for each) as its runs of non-zero bytes."""
    if bits is None:
        return b""
    return b"".join(_STRETCH.pack(found.start(), len(found[0])) + found[0] for found in _NOT_ZERO.finditer(bits))


def unpack_ids(packed: bytes) -> bytearray:
    """Return the bit set that `pack_ids` has packed."""
    bits = bytearray(ID_SET_BYTES)
    at = 0
    while at < len(packed):
        start, length = _STRETCH.unpack_from(packed, at)
        at += _STRETCH.size
        if start + length > ID_SET_BYTES or at + length > len(packed):
            raise StorageError("a set of packet ids is cut short")
        bits[start : start + length] = packed[at : at + length]
        at += length
    return bits


def pack_offsets(offsets: tuple[int, ...]) -> bytes:
    """Pack offsets, one for each shard; -1 is allowed."""
    return struct.pack(f"<{len(offsets)}q", *offsets) if offsets else b""


def unpack_offsets(packed: bytes) -> tuple[int, ...]:
    """Return the offsets that `pack_offsets` has packed."""
    return struct.unpack(f"<{len(packed) // 8}q", packed) if packed else ()


def pack_positions(positions: Iterable[int]) -> bytes:
    """Pack positions in 8 bytes each."""
    return array("Q", positions).tobytes()


def unpack_positions(packed: bytes) -> list[int]:
    """Return the positions that `pack_positions` has packed."""
    found = array("Q")
    found.frombytes(packed)
    return found.tolist()


def pack_unsure(entries: list[tuple[int, int, bytes]]) -> bytes:
    """Pack packet ids, each list with the shard and the offset that tell whether it counts."""
    return b"".join(_UNSURE.pack(shard, end, len(ids)) + ids for shard, end, ids in entries)


def unpack_unsure(packed: bytes) -> list[tuple[int, int, bytes]]:
    """Return the entries (shard, end, packet ids) that `pack_unsure` has packed."""
    entries = []
    at = 0
    while at < len(packed):
        shard, end, size = _UNSURE.unpack_from(packed, at)
        at += _UNSURE.size + size
        if at > len(packed):
            raise StorageError("a list of packet ids is cut short")
        entries.append((shard, end, packed[at - size : at]))
    return entries


def unpack_inflight(packed: bytes) -> list[tuple[int, int, int]]:
    """Return the entries (packet id, state, position) that `Window.packed` or `pack_inflight` has packed."""
    return list(_INFLIGHT.iter_unpack(packed))


def pack_inflight(pending: list[tuple[int, int, int]]) -> bytes:
    """Pack messages under way as `Window.packed` does."""
    return b"".join(_INFLIGHT.pack(*entry) for entry in pending)


def pack_owed(entries: Iterable[tuple[int, Owed]]) -> bytes:
    """Pack messages that a group is not done with: first the names of their last members, then 14 bytes a message."""
    members: dict[str, int] = {}
    packed = [
        _OWED.pack(position, members.setdefault(one.member, len(members)), one.packet_id, min(one.deals, _MOST_DEALS))
        for position, one in entries
    ]
    names = [name.encode() for name in members]
    return b"".join((_SIZE.pack(len(names)), *(_SIZE.pack(len(name)) + name for name in names), *packed))


def unpack_owed(packed: bytes) -> list[tuple[int, Owed]]:
    """Return the messages, with their positions, that `pack_owed` has packed."""
    if not packed:
        return []
    try:
        (count,) = _SIZE.unpack_from(packed)
        at = _SIZE.size
        members = []
        for _ in range(count):
            (size,) = _SIZE.unpack_from(packed, at)
            at += _SIZE.size + size
            if at > len(packed):
                raise StorageError("the messages that a group owes are cut short")
            members.append(packed[at - size : at].decode())
        return [
            (position, Owed(members[which], packet_id, deals))
            for position, which, packet_id, deals in _OWED.iter_unpack(packed[at:])
        ]
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise StorageError(f"the messages that a group owes can't be read: {error}") from error


def pack_feeds(feeds: Iterable[RetainedFeed]) -> bytes:
    """Pack which retained messages are owed, by filter; those at QoS 0 need not come after a restart."""
    named = ((feed, feed.filter.encode()) for feed in feeds if feed.qos)
    return b"".join(_FEED.pack(feed.at, feed.end, len(name)) + name for feed, name in named)


def unpack_feeds(packed: bytes) -> list[RetainedFeed]:
    """Return the feeds that `pack_feeds` has packed."""
    feeds = []
    at = 0
    try:
        while at < len(packed):
            first, end, size = _FEED.unpack_from(packed, at)
            at += _FEED.size + size
            if at > len(packed):
                raise StorageError("the retained messages that a session is owed are cut short")
            feeds.append(RetainedFeed(packed[at - size : at].decode(), first, end))
    except (struct.error, UnicodeDecodeError) as error:
        raise StorageError(f"the retained messages that a session is owed can't be read: {error}") from error
    return feeds


def pack_will(will: Will | None) -> bytes | None:
    """Pack a will as an MQTT 5 CONNECT that carries nothing else, so that it keeps all its properties."""
    return None if will is None else encode(Connect(5, "", will=unpack_pairs(will)), 5)


def unpack_will(packed: bytes | None) -> Will | None:
    """Return the will that `pack_will` has packed."""
    if packed is None:
        return None
    try:
        header = read_fixed_header(packed, 5)
        packet = decode(packed[0], packed[header[2] :], 5) if header is not None else None
    except PeerError as error:
        raise StorageError(f"a stored will can't be read: {error}") from error
    if not isinstance(packet, Connect):
        raise StorageError("a stored will is not a CONNECT packet")
    return None if packet.will is None else pack_pairs(packet.will)


def pack_subscription(one: Subscribed, committed: Sequence[int]) -> SubscriptionRow:
    """Return a subscription as it is stored, with no begin above the committed end: a crash cuts what lies there."""
    # the options of the SUBSCRIBE packet (section 3.8.3.1), and in its reserved bits what messages are to tell
    options = one.qos | one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4 | one.tells << 6
    since = tuple([min(at, end) for at, end in zip(one.since, committed, strict=False)])
    return SubscriptionRow(one.filter, options, one.identifier, pack_offsets(since))


def unpack_subscription(row: SubscriptionRow) -> Subscribed:
    """Return a stored subscription as a session holds it."""
    bits, since = row.options, unpack_offsets(row.since)
    return Subscribed(
        row.filter, bits & 3, bool(bits & 4), bool(bits & 8), bits >> 4 & 3, row.identifier, since, bits >> 6 & 3
    )


pack_session = msgspec.msgpack.Encoder().encode
unpack_session = msgspec.msgpack.Decoder(StoredSession).decode
