"""What brokers say to each other of shared groups: the bodies of frames, in MessagePack (`docs/formats/links.md`)."""

import msgspec

from everlog.broker import Dealt, Seated, SeatNews


class SeatQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A seat that is to be had, or what is said of one."""

    name: str
    filter: str
    seated: Seated | None = None


class Sitting(msgspec.Struct, frozen=True, array_like=True):
    """A group, and the number of a sitting there."""

    name: str
    filter: str
    sitting: int = 0


class DealFrame(msgspec.Struct, frozen=True, array_like=True):
    """What the members of a seat are dealt."""

    name: str
    filter: str
    sitting: int
    deals: tuple[Dealt, ...]


class NewsFrame(msgspec.Struct, frozen=True, array_like=True):
    """What has changed at a seat."""

    name: str
    filter: str
    news: SeatNews


encode = msgspec.msgpack.Encoder().encode
decode_questions = msgspec.msgpack.Decoder(list[SeatQuestion]).decode
decode_sittings = msgspec.msgpack.Decoder(list[Sitting]).decode
decode_deals = msgspec.msgpack.Decoder(DealFrame).decode
decode_news = msgspec.msgpack.Decoder(NewsFrame).decode
decode_count = msgspec.msgpack.Decoder(int).decode
