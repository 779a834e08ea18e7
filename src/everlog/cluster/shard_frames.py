"""What brokers say to each other of the messages of shards (`docs/formats/links.md`)."""

import struct
from typing import NamedTuple

from everlog.cluster.link_frames import BadFrame

_SHARD = struct.Struct("<IQ")  # shard, epoch
_OWNED = struct.Struct("<IQQ")  # shard, epoch, number of what is committed
_OFFER = struct.Struct("<IQQ")  # shard, epoch, segment


class ShardFrame(NamedTuple):
    """The head of a frame, and where what is behind it begins in the frame's body: a batch is not copied once more."""

    shard: int
    epoch: int
    more: int
    start: int


def encode_publish(shard: int, epoch: int) -> bytes:
    """Return what stands before the batch in the body of a PUBLISH, whose number is that of its first message; a
    CONFIRM has no batch."""
    return _SHARD.pack(shard, epoch)


def decode_publish(data: bytes, shards: int) -> ShardFrame:
    """Return what `encode_publish` was given, and the batch."""
    return _decode(_SHARD, data, shards)


def encode_owned(shard: int, epoch: int, committed: int) -> bytes:
    """Return the body of an OWNED, whose number is that of the receiver's last message that was appended."""
    return _OWNED.pack(shard, epoch, committed)


def decode_owned(data: bytes, shards: int) -> ShardFrame:
    """Return what `encode_owned` was given."""
    return _decode(_OWNED, data, shards)


def encode_offer(shard: int, epoch: int, segment: int) -> bytes:
    """Return what stands before the batch in the body of an OFFER, whose number is the batch's first offset."""
    return _OFFER.pack(shard, epoch, segment)


def decode_offer(data: bytes, shards: int) -> ShardFrame:
    """Return what `encode_offer` was given, and the batch."""
    return _decode(_OFFER, data, shards)


def _decode(head: struct.Struct, data: bytes, shards: int) -> ShardFrame:
    if len(data) < head.size:
        raise BadFrame(f"a frame of {len(data)} bytes is too short for what it should be")
    shard, epoch, *more = head.unpack_from(data)
    if shard >= shards:
        raise BadFrame(f"there is no shard {shard}")
    return ShardFrame(shard, epoch, more[0] if more else 0, head.size)
