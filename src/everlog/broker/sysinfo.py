"""The `$SYS/broker/...` topics, under the names that Mosquitto gave them so that existing dashboards work.

`Sample` is what is counted at one moment, `SysInfo` turns samples into topics and texts without a clock or a broker,
`SysTopics` is the timer that takes samples and publishes what changed.
"""

import asyncio
import contextlib
import math
from dataclasses import dataclass

from everlog._version import VERSION
from everlog.broker.broker import Broker
from everlog.broker.durablegroup import GroupState
from everlog.broker.survey import Survey, Surveyor
from everlog.mqtt import Publish

ROOT = "$SYS/broker/"
MINUTES = (1, 5, 15)
MOST_GROUPS = 100  # shared groups that have topics, those with the largest lag


@dataclass(frozen=True, slots=True)
class Sample:
    """The broker's counts at `time` (seconds since its start)."""

    time: float = 0.0
    connected: int = 0
    sessions: int = 0
    subscriptions: int = 0
    shared_subscriptions: int = 0
    retained: int = 0
    inflight: int = 0
    stored: int = 0
    received: int = 0
    sent: int = 0
    dropped: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    connects: int = 0
    groups: tuple[GroupState, ...] = ()
    retention_lost: int = 0
    retention_next: str = "[]"


_LOADS = {
    "messages/received": "received",
    "messages/sent": "sent",
    "publish/received": "received",
    "publish/sent": "sent",
    "publish/dropped": "dropped",
    "bytes/received": "bytes_in",
    "bytes/sent": "bytes_out",
    "connections": "connects",
    "sockets": "connects",
}

_COUNTS = {
    "clients/connected": "connected",
    "clients/active": "connected",
    "clients/total": "sessions",
    "messages/received": "received",
    "messages/sent": "sent",
    "messages/stored": "stored",
    "messages/inflight": "inflight",
    "store/messages/count": "stored",
    "publish/messages/received": "received",
    "publish/messages/sent": "sent",
    "publish/messages/dropped": "dropped",
    "bytes/received": "bytes_in",
    "bytes/sent": "bytes_out",
    "subscriptions/count": "subscriptions",
    "shared_subscriptions/count": "shared_subscriptions",
    "retained messages/count": "retained",
    "retention/lost": "retention_lost",
    "retention/next": "retention_next",
}


class SysInfo:
    """Remembers the sample before, the averages, and what was said last."""

    def __init__(self) -> None:
        self._before = Sample()
        self._loads = {(name, minutes): 0.0 for name in set(_LOADS.values()) for minutes in MINUTES}
        self._most_connected = 0
        self._said: dict[str, str] = {}

    def topics(self, sample: Sample) -> dict[str, str]:
        """Every topic's text at this sample."""
        self._average(sample)
        self._most_connected = max(self._most_connected, sample.connected)
        away = str(max(0, sample.sessions - sample.connected))
        found = {
            "version": f"everlog version {VERSION}",
            "uptime": f"{int(sample.time)} seconds",
            "clients/maximum": str(self._most_connected),
            "clients/disconnected": away,
            "clients/inactive": away,
        }
        for topic, name in _COUNTS.items():
            found[topic] = str(getattr(sample, name))
        for group in sample.groups:  # one name may stand with several filters
            for count in ("lag", "inflight", "members"):
                topic = f"groups/{group.name}/{count}"
                found[topic] = str(int(found.get(topic, 0)) + getattr(group, count))
        for topic, name in _LOADS.items():
            for minutes in MINUTES:
                found[f"load/{topic}/{minutes}min"] = f"{self._loads[name, minutes]:.2f}"
        return {ROOT + topic: text for topic, text in found.items()}

    def changes(self, sample: Sample) -> dict[str, str]:
        """The topics whose text is not what it was at the sample before; of those that are no more, an empty one."""
        found = self.topics(sample)
        changed = {topic: text for topic, text in found.items() if self._said.get(topic) != text}
        changed.update((topic, "") for topic in self._said if topic not in found)
        self._said = found
        return changed

    def _average(self, sample: Sample) -> None:
        """Per minute, exponentially damped over 1, 5 and 15 minutes, as the load of a Unix machine is."""
        before, self._before = self._before, sample
        elapsed_s = sample.time - before.time
        if elapsed_s <= 0:
            return
        for name, minutes in self._loads:
            rate = (getattr(sample, name) - getattr(before, name)) * 60 / elapsed_s
            old = self._loads[name, minutes]
            self._loads[name, minutes] = rate + math.exp(-elapsed_s / (60 * minutes)) * (old - rate)


def take_sample(broker: Broker, counted: Survey, since: float) -> Sample:
    """Count now; `since` is the broker's time at its start."""
    metrics, router, traffic = broker.metrics, broker.router, broker.traffic
    return Sample(
        time=broker.time() - since,
        connected=len(broker.clients.connections),
        sessions=len(broker.clients),
        subscriptions=counted.subscriptions,
        shared_subscriptions=counted.shared_subscriptions,
        retained=len(broker.retained),
        inflight=counted.inflight,
        stored=sum(shard.committed - getattr(shard, "start", 0) for shard in broker.log.shards),
        received=router.messages_in,
        sent=counted.sent,
        dropped=counted.dropped,
        bytes_in=traffic.bytes_in,
        bytes_out=traffic.bytes_out,
        connects=metrics.connects,
        groups=tuple(sorted(broker.groups.states(), key=lambda one: -one.lag)[:MOST_GROUPS]),
        retention_lost=broker.retention.lost,
        retention_next=broker.retention.next_text(),
    )


class SysTopics:
    """Publishes the topics, retained, when it starts and then every `interval_s`; 0 never does."""

    def __init__(self, broker: Broker, interval_s: float) -> None:
        self._broker = broker
        self._interval_s = interval_s
        self._info = SysInfo()
        self._surveyor = Surveyor(broker)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin on the running event loop."""
        if self._interval_s > 0:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Publish no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def publish(self, since: float) -> None:
        """Publish what changed, once."""
        sample = take_sample(self._broker, await self._surveyor.take(), since)
        for topic, text in self._info.changes(sample).items():
            self._broker.publish(Publish(topic, text.encode(), retain=True))

    async def _run(self) -> None:
        since = self._broker.time()
        while True:
            await self.publish(since)
            await asyncio.sleep(self._interval_s)


def all_topics() -> list[str]:
    """Every topic there is, for the reference."""
    return sorted(SysInfo().topics(Sample()))
