"""What client and broker agreed on."""

from msgspec import Struct

from everlog.mqtt import MAX_PACKET_BYTES, Will


class Terms(Struct, frozen=True):
    """What client and broker agreed on at CONNECT."""

    version: int = 4
    user: str | None = None
    expiry_s: int = 0
    will: Will | None = None
    max_inflight: int = 2048
    max_packet_bytes: int = MAX_PACKET_BYTES
    max_aliases: int = 0
    is_bridge: bool = False
    mount: str = ""  # what stands before the topics of its client
