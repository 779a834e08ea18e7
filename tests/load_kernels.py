"""Both twins of the load generator's kernels, and a stream of deliveries to check.

Each twin has the decoder of its own kind: they tell runs by their classes.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from everlog.bench.load.options import Naming, filler_of, head_of
from tests.twins import COMPILED, PURE, Twin, _load, _load_interpreted

RUN = 0xDEADBEEF
FILLER = filler_of(40)
NAMING = Naming(RUN)
NAMES = ("figures", "sender", "checker", "link")


def _twin(base: Twin, modules: dict[str, Any]) -> SimpleNamespace:
    load = {name: modules[f"everlog.bench.load.{name}"] for name in NAMES}
    return SimpleNamespace(name=base.name, base=Twin(base.name, modules), **load)


TWINS = [
    _twin(base, modules)
    for base, modules in (
        (COMPILED, _load() if COMPILED is not None else {}),
        (PURE, _load_interpreted() if COMPILED is not None else _load()),
    )
    if base is not None
]


def names_of(twin: SimpleNamespace) -> str:
    """For pytest's ids."""
    return str(twin.name)


def sender(twin: Any, tally: Any, number: int = 0, qos: int = 0, topics: int = 1, window: int = 100) -> Any:
    """A publisher with no limit."""
    heads = [head_of(NAMING.topic(number, topic), len(FILLER), qos, False) for topic in range(topics)]
    made = twin.sender.Sender(tally, RUN, number, heads, qos, FILLER, window)
    made.limit = 1 << 40
    return made


def checker(twin: Any, tally: Any, publishers: int = 1, topics: int = 1, qos: int = 0) -> Any:
    """What checks the deliveries of such publishers."""
    names = [NAMING.topic(number, topic) for number in range(publishers) for topic in range(topics)]
    prefix = head_of(names[0], len(FILLER), qos, False)[: -len(names[0])]
    return twin.checker.Checker(tally, RUN, publishers, topics, FILLER, qos << 1, prefix, "".join(names).encode())


def packets(twin: Any, count: int, *, number: int = 0, qos: int = 0, topics: int = 1, at_ns: int = 1000) -> list[bytes]:
    """The first PUBLISHes of a publisher, one by one."""
    made = sender(twin, twin.figures.Tally(), number, qos, topics, window=max(1, count))
    out = bytearray(count * made.packet_bytes)
    end = made.render(out, 0, count, at_ns)
    size = made.packet_bytes
    return [bytes(out[i : i + size]) for i in range(0, end, size)]


def feed(
    twin: Any, check: Any, stream: Sequence[bytes], now_ns: int = 3000, publishers: int = 1, topics: int = 1
) -> None:
    """Hand packets to a checker by way of a decoder's columns."""
    base = twin.base
    table = base.TopicTable()
    for number in range(publishers):
        for topic in range(topics):
            table.intern(NAMING.topic(number, topic).encode())
    decoder = base.Decoder(base.MessageColumns(8), table, version=4, from_client=False)
    for event in decoder.feed(b"".join(stream)):
        check.take(event, now_ns)


__all__ = ["FILLER", "NAMING", "RUN", "TWINS", "checker", "feed", "names_of", "packets", "sender"]
