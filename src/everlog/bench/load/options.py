"""The options of a run, and the names and bytes that follow from them."""

from dataclasses import dataclass, replace
from typing import Any

from everlog.base import UsageError
from everlog.bench.load.sender import STAMP_BYTES
from everlog.mqtt import Publish, encode
from everlog.store import MAX_SHARDS

MAX_CONNECTIONS, MAX_MESSAGES, MAX_SECONDS = 60_000, 100_000_000, 600.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one run of one scenario, against a broker on this machine only."""

    scenario: str
    port: int
    username: str | None = None
    password: str | None = None
    publishers: int = 1
    subscribers: int = 1
    connections: int = 500
    messages: int = 0  # in all; 0 leaves it to the seconds
    seconds: float = 3.0  # of sending; what was sent is still waited for
    qos: int = 1
    sub_qos: int | None = None  # of the subscriptions; else that of the messages
    size: int = 100
    window: int = 100  # unanswered messages of a publisher
    topics: int = 1  # of each publisher
    rate: float = 0.0  # messages a second on a schedule; 0 is full speed
    outstanding: int = 0  # hold the publishers while so many messages have not reached the subscribers
    own: bool = False  # each subscriber has the topics of one publisher only, not all
    slow: int = 0  # more subscribers that acknowledge ten messages a second
    hold: float = 2.0  # seconds that connections are held
    shards: int = 4  # of the broker's log (bystander)
    stored: int = 0  # messages that concern nobody (recall)
    burst: int = 64  # connects under way at once
    timeout: float = 60.0  # of the whole run
    stall: float = 10.0  # without any progress
    settle: float = 0.2  # pause between phases
    pids: tuple[int, ...] = ()  # the broker's processes, for CPU and memory
    number: int = 0  # of the run, if it is to find what another has left behind; 0 for one by chance
    turn_clock: str = ""  # the file that the turns of the broker's loop are told in, see `turn_clock`
    metrics_port: int = 0  # of the broker's HTTP, for what only itself can tell
    label: str = ""

    def __post_init__(self) -> None:
        checks = (
            (1 <= self.port <= 65_535, "the port is 1 to 65535"),
            (0 <= self.qos <= 2 and (self.sub_qos is None or 0 <= self.sub_qos <= 2), "a QoS is 0, 1 or 2"),
            (STAMP_BYTES <= self.size <= 1 << 24, f"a payload has {STAMP_BYTES} bytes (for its stamp) to 16 MiB"),
            (1 <= self.window <= 16_000, "a window is 1 to 16000"),
            (1 <= self.publishers <= MAX_CONNECTIONS, f"1 to {MAX_CONNECTIONS} publishers"),
            (0 <= self.subscribers <= MAX_CONNECTIONS, f"at most {MAX_CONNECTIONS} subscribers"),
            (1 <= self.connections <= MAX_CONNECTIONS, f"1 to {MAX_CONNECTIONS} connections"),
            (0 <= self.messages <= MAX_MESSAGES and self.stored <= MAX_MESSAGES, f"at most {MAX_MESSAGES} messages"),
            (2 <= self.shards <= MAX_SHARDS, f"2 to {MAX_SHARDS} shards"),
            (1 <= self.topics <= 1_000_000, "1 to 1000000 topics"),
            (0 < self.seconds <= MAX_SECONDS and 0 < self.timeout <= MAX_SECONDS, f"at most {MAX_SECONDS:.0f} seconds"),
        )
        for right, message in checks:
            if not right:
                raise UsageError(message)

    @property
    def delivered_qos(self) -> int:
        """The QoS of deliveries."""
        return self.qos if self.sub_qos is None else min(self.qos, self.sub_qos)

    def but(self, **changes: Any) -> "Options":
        """Return the same options with changes."""
        return replace(self, **changes)


class Naming:
    """The topics of one run: `b1f3/p00000/t000000`, all of one length and unlike those of other runs."""

    def __init__(self, run: int) -> None:
        self.prefix = f"b{run & 0xFFFF:04x}"

    def topic(self, publisher: int, topic: int) -> str:
        """Return the name of a publisher's topic."""
        return f"{self.prefix}/p{publisher:05d}/t{topic:06d}"

    def of_publisher(self, publisher: int) -> str:
        """Return a filter for all topics of a publisher."""
        return f"{self.prefix}/p{publisher:05d}/+"

    def across(self, publisher: int, topic: int) -> str:
        """Return a filter that begins with a wildcard, for a topic of a publisher."""
        return f"+/p{publisher:05d}/t{topic:06d}"

    @property
    def everything(self) -> str:
        """A filter for all topics of the run."""
        return f"{self.prefix}/#"


def filler_of(size: int) -> bytes:
    """Return a payload before it is stamped."""
    return (b"0123456789abcdefghijklmnopqrstuvwxyz" * (size // 36 + 1))[:size]


def head_of(topic: str, size: int, qos: int, retain: bool) -> bytes:
    """Return a PUBLISH up to its packet id, or up to its payload of `size` bytes if it has no id."""
    packet = encode(Publish(topic, bytes(size), qos, retain, packet_id=1 if qos else 0), 4)
    return packet[: len(packet) - size - (2 if qos else 0)]
