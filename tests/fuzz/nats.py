"""The fuzz target for what a NATS server may send: the same deliveries and lines from every twin, however it is cut."""

import random
from typing import Any

from tests.twins import TWINS, Twin

from everlog.base import PeerError

_LINES = (b"PING\r\n", b"+OK\r\n", b"-ERR 'no'\r\n", b"INFO {}\r\n", b"\r\n", b"MSG \r\n", b"MSG a 1 5\r\n")
_NOISE = (b"\r", b"\n", b" ", b"MSG ", b"9", b"99999999999999999999", b"\0", b"\xff", b"_INBOX.")


def nats_stream(chance: random.Random) -> bytes:
    """Bytes of a server, some of them wrong; the first says how they are cut."""
    pieces = [bytes((chance.randrange(256),))]
    for _ in range(chance.randint(1, 8)):
        payload = chance.randbytes(chance.choice((0, 1, 5, 300)))
        reply = chance.choice((b"", b"_INBOX.x ", b"evil "))
        size = len(payload) + (chance.randrange(-1, 2) if chance.random() < 0.1 else 0)
        message = b"MSG s.%d %d %b%d\r\n%b\r\n" % (chance.randrange(9), chance.randrange(9), reply, size, payload)
        pieces.append(chance.choice((message, message, message, chance.choice(_LINES), chance.choice(_NOISE))))
    data = bytearray(b"".join(pieces))
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def fuzz_nats(data: bytes) -> None:
    """Feed bytes whole and cut, to every twin; AssertionError if they do not agree."""
    whole = [_read(twin, [data[1:]]) for twin in TWINS]
    assert all(each == whole[0] for each in whole), whole
    chance = random.Random(data[0])
    chunks, rest = [], data[1:]
    while rest:
        size = chance.randint(1, chance.choice((2, 20, 200)))
        chunks.append(rest[:size])
        rest = rest[size:]
    cut = [_read(twin, chunks) for twin in TWINS]
    assert all(each == cut[0] for each in cut), cut
    if not whole[0][2]:
        assert cut[0] == whole[0], (cut[0], whole[0])


def _read(twin: Twin, chunks: list[bytes]) -> tuple[Any, Any, bool]:
    decoder = twin.NatsDecoder()
    try:
        for chunk in chunks:
            decoder.feed(chunk)
    except PeerError:
        return decoder.batches, decoder.lines, True
    return decoder.batches, decoder.lines, False
