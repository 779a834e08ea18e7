"""Input for the fuzz targets: streams of vectors and of random bytes, and batches, mutated with a seed."""

import random
from collections.abc import Callable

from tests.fuzz.plain import Vector, vectors
from tests.fuzz.target import HEAD_BYTES, VERSIONS, head
from tests.twins import AMBIENT

from everlog.mqtt import NO_PROPERTIES, Properties, Publish, encode

EDGES = (0x00, 0x01, 0x02, 0x23, 0x2B, 0x30, 0x32, 0x7F, 0x80, 0x81, 0xC0, 0xED, 0xFF)


def _flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _edge(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] = chance.choice(EDGES)


def _noise(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] = chance.randrange(256)


def _drop(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.randint(1, 4)]


def _insert(data: bytearray, chance: random.Random) -> None:
    at = chance.randint(0, len(data))
    data[at:at] = chance.randbytes(chance.randint(1, 4))


def _repeat(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at:at] = data[at : at + chance.randint(1, 30)]


def _shorten(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _edge,
    _noise,
    _drop,
    _insert,
    _repeat,
    _shorten,
)


def mutate(data: bytearray, chance: random.Random) -> bytearray:
    """A few mutations, often none."""
    for _ in range(chance.choice((0, 0, 1, 1, 1, 2, 4, 8))):
        if data:
            chance.choice(MUTATIONS)(data, chance)
    return data


class Corpus:
    """The vectors by the version and side that they belong to, and some batches."""

    def __init__(self) -> None:
        self.connects = [each for each in vectors() if each.is_connect]
        self.good_connects = [each for each in self.connects if each.reason is None]
        self.others: dict[tuple[int, bool], list[Vector]] = {}
        for vector in vectors():
            if not vector.is_connect:
                self.others.setdefault((vector.version, vector.from_client), []).append(vector)
        # What the kernels take themselves is most of what there is.
        self.messages = {
            key: [each for each in found if each.reason is None and 0x30 <= each.data[0] < 0x80]
            for key, found in self.others.items()
        }
        self.batches = [self._batch(chance) for chance in map(random.Random, range(20))]

    def _batch(self, chance: random.Random) -> bytes:
        table = AMBIENT.TopicTable()
        decoder = AMBIENT.Decoder(AMBIENT.MessageColumns(1), table, version=5)
        builder = AMBIENT.RecordBuilder()
        publisher = AMBIENT.PublisherName(b"client\0user", True) if chance.random() < 0.5 else None
        for i in range(chance.randint(1, 5)):
            properties = Properties(content_type="text") if chance.random() < 0.5 else NO_PROPERTIES
            payload = chance.randbytes(chance.randrange(20))
            packet = Publish(f"t/{chance.randrange(3)}", payload, qos=2, packet_id=i + 1, properties=properties)
            for run in decoder.feed(encode(packet, 5)):
                builder.append(run.columns, run.start, run.stop, 1000 + i, table, publisher=publisher)
        return bytes(builder.take(chance.randrange(1 << 40)).to_bytes())

    def stream(self, chance: random.Random) -> bytes:
        """Settings and a stream for `fuzz_one`."""
        version = chance.choice(VERSIONS)
        from_client = version == 0 or chance.random() < 0.7
        packets = bytearray()
        spoken = version
        if version == 0:
            first = chance.choice(self.good_connects if chance.random() < 0.8 else self.connects)
            packets += first.data
            spoken = first.version
        for _ in range(chance.choice((1, 1, 2, 5, 20))):
            kind = chance.random()
            pool = (self.messages if kind < 0.8 else self.others)[spoken, from_client]
            packets += chance.choice(pool if kind < 0.99 else self.connects).data
        if chance.random() < 0.1:
            packets += chance.randbytes(chance.randrange(60))
        limits = chance.randrange(16) if chance.random() < 0.3 else 0
        return head(version, from_client, limits, chance.randrange(256)) + bytes(mutate(packets, chance))

    def noise(self, chance: random.Random) -> bytes:
        """Nothing but random bytes."""
        return chance.randbytes(chance.randint(HEAD_BYTES, 80))

    def batch(self, chance: random.Random) -> bytes:
        """A damaged batch for `fuzz_batch`."""
        return bytes(mutate(bytearray(chance.choice(self.batches)), chance))
