"""The `$SYS/broker/...` topics, under the names that Mosquitto gave them so that existing dashboards work.

`SysInfo` turns numbers into topics and texts without a clock or a broker; `SysTopics` takes the numbers from time to
time and publishes what changed.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable
from operator import attrgetter

from everlog._version import VERSION
from everlog.broker.reports.numbers import Numbers, Reports
from everlog.mqtt import Publish

ROOT = "$SYS/broker/"
MINUTES = (1, 5, 15)

_LOADS = {
    "messages/received": "received",
    "messages/sent": "survey.sent",
    "publish/received": "received",
    "publish/sent": "survey.sent",
    "publish/dropped": "survey.dropped",
    "bytes/received": "bytes_in",
    "bytes/sent": "bytes_out",
    "connections": "counters.connects",
    "sockets": "counters.connects",
}

_COUNTS = {
    "clients/connected": "connected",
    "clients/active": "connected",
    "clients/total": "sessions",
    "clients/expired": "counters.sessions_expired",
    "messages/received": "received",
    "messages/sent": "survey.sent",
    "messages/stored": "stored",
    "messages/inflight": "survey.inflight",
    "store/messages/count": "stored",
    "store/messages/bytes": "stored_bytes",
    "heap/current": "memory_bytes",
    "heap/maximum": "memory_peak_bytes",
    "publish/messages/received": "received",
    "publish/messages/sent": "survey.sent",
    "publish/messages/dropped": "survey.dropped",
    "publish/bytes/received": "bytes_in",
    "publish/bytes/sent": "bytes_out",
    "bytes/received": "bytes_in",
    "bytes/sent": "bytes_out",
    "subscriptions/count": "survey.subscriptions",
    "shared_subscriptions/count": "survey.shared_subscriptions",
    "retained messages/count": "retained",
    "retention/lost": "retention.lost",
}


class SysInfo:
    """The topics' texts; remembers the previous numbers, the averages, and what was published last."""

    def __init__(self) -> None:
        self._before = Numbers()
        self._loads = {(name, minutes): 0.0 for name in set(_LOADS.values()) for minutes in MINUTES}
        self._most_connected = 0
        self._said: dict[str, str] = {}

    def topics(self, numbers: Numbers) -> dict[str, str]:
        """Return every topic's text."""
        self._average(numbers)
        self._most_connected = max(self._most_connected, numbers.connected)
        away = str(max(0, numbers.sessions - numbers.connected))
        found = {
            "version": f"everlog version {VERSION}",
            "uptime": f"{int(numbers.uptime_s)} seconds",
            "clients/maximum": str(self._most_connected),
            "clients/disconnected": away,
            "clients/inactive": away,
            "retention/next": numbers.retention.next_text(),
        }
        for topic, name in _COUNTS.items():
            found[topic] = str(attrgetter(name)(numbers))
        for group in numbers.largest_groups:  # one name may have several filters
            for count in ("lag", "inflight", "members"):
                topic = f"groups/{group.name}/{count}"
                found[topic] = str(int(found.get(topic, 0)) + getattr(group, count))
        for topic, name in _LOADS.items():
            for minutes in MINUTES:
                found[f"load/{topic}/{minutes}min"] = f"{self._loads[name, minutes]:.2f}"
        return {ROOT + topic: text for topic, text in found.items()}

    def changes(self, numbers: Numbers) -> dict[str, str]:
        """Return the topics whose text has changed since the last call; a topic that is gone has an empty text."""
        found = self.topics(numbers)
        changed = {topic: text for topic, text in found.items() if self._said.get(topic) != text}
        changed.update((topic, "") for topic in self._said if topic not in found)
        self._said = found
        return changed

    def _average(self, numbers: Numbers) -> None:
        """Update the averages per minute, damped over 1, 5 and 15 minutes like the load average of Unix."""
        before, self._before = self._before, numbers
        elapsed_s = numbers.uptime_s - before.uptime_s
        if elapsed_s <= 0:
            return
        for name, minutes in self._loads:
            count = attrgetter(name)
            rate = (count(numbers) - count(before)) * 60 / elapsed_s
            old = self._loads[name, minutes]
            self._loads[name, minutes] = rate + math.exp(-elapsed_s / (60 * minutes)) * (old - rate)


class SysTopics:
    """The publisher of the topics, retained, at start and then every `interval_s`; with 0 never."""

    def __init__(self, reports: Reports, send: Callable[[Publish], object], interval_s: float) -> None:
        self._reports = reports
        self._send = send
        self._interval_s = interval_s
        self._info = SysInfo()
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

    async def publish(self) -> None:
        """Publish what changed, once."""
        for topic, text in self._info.changes(await self._reports.take()).items():
            self._send(Publish(topic, text.encode(), retain=True))

    async def _run(self) -> None:
        while True:
            await self.publish()
            await asyncio.sleep(self._interval_s)
