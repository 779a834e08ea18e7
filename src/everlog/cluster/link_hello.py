"""What brokers tell each other first, and why one of them may be refused."""

import msgspec

from everlog.base import StorageError, UsageError
from everlog.cluster.link_frames import BadFrame

FORMAT_MIN = FORMAT_MAX = 1  # of what is in frames: the lowest of the living is spoken


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who speaks, of which cluster, to whom, what it understands, and which database it has seen."""

    cluster: int  # the identity of the store
    incarnation: int
    name: str
    to: int  # the incarnation that it believes to speak with; 0: it was called
    format_min: int = FORMAT_MIN
    format_max: int = FORMAT_MAX
    system: int = 0  # of the database, 0 if it has seen none
    timeline: int = 0


def encode_hello(hello: Hello) -> bytes:
    """Return the body of a HELLO."""
    return msgspec.msgpack.encode(hello)


def decode_hello(body: bytes) -> Hello:
    """Return what a body says; raise BadFrame."""
    try:
        return msgspec.msgpack.decode(body, type=Hello)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"a peer's hello can't be read: {error}") from error


def check_hello(mine: Hello, theirs: Hello, *, called: bool) -> None:
    """Raise if there can be no link: `called` says that the peer dialled.

    Of two brokers the one that came later dials, so that there is one connection.
    """
    if theirs.cluster != mine.cluster:
        raise UsageError(
            f"{theirs.name} belongs to another cluster", hint="give each cluster a database schema and ports of its own"
        )
    if theirs.format_max < mine.format_min or theirs.format_min > mine.format_max:
        raise UsageError(
            f"{theirs.name} speaks formats {theirs.format_min} to {theirs.format_max}, "
            f"this broker {mine.format_min} to {mine.format_max}",
            hint="update the older of the two; releases one apart understand each other",
        )
    if called and (theirs.to != mine.incarnation or theirs.incarnation <= mine.incarnation):
        raise StorageError(f"{theirs.name} looks for incarnation {theirs.to} here, and this is {mine.incarnation}")
    if not called and theirs.incarnation != mine.to:
        raise StorageError(f"incarnation {theirs.incarnation} answers where {mine.to} was")
