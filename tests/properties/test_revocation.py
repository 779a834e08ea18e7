"""Whatever clients do: after a reload that denies a topic, no byte of that topic is sent to them by any way.

Two readers with small windows, one of them durable, subscribe, replay, share, leave things unacknowledged, go and come
back, while rules change. Every write to a reader is held against the rules of that moment.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.restarts import Client, Disk, Running, eventually

from everlog.broker import Security
from everlog.mqtt import (
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    decode,
    read_fixed_header,
)
from everlog.topics import matches, parse_filter

READERS = {"lasting": 1000, "passing": 0}  # with their session expiry
FILTERS = ["a/#", "a/1", "b/#", "+/1", "$share/g/a/#", "$share/h/b/1", "$replay/earliest/a/#", "$replay/earliest/+/1"]
TOPICS = ["a/1", "a/2", "a/3", "a/4", "b/1", "b/2", "c/1", "c/2"]
RIGHTS = ["read a/#", "read a/1", "read b/#", "read +/1", "deny a/1", "deny read b/#", "read c/#"]
EVERYTHING = {"read a/#", "read b/#", "read c/#", "read +/1"}
ALWAYS = "client pub readwrite #\nclient member readwrite #\neveryone readwrite z\n"

WAYS = ["publish"] * 4 + ["reload"] * 2 + ["subscribe", "subscribe", "acknowledge", "come", "go"]


def course_of(random: Random, steps: int) -> Iterator[tuple[Any, ...]]:
    """What happens, step by step."""
    for _ in range(steps):
        way, name = random.choice(WAYS), random.choice(sorted(READERS))
        if way == "publish":
            for _ in range(random.randint(1, 4)):
                yield way, random.choice(TOPICS), random.randint(0, 2), random.random() < 0.7
        elif way == "subscribe":
            # what nobody durable is subscribed to is in no log, and waits in memory
            yield way, name, random.choice(FILTERS if name == "lasting" else [*FILTERS, "c/#"]), random.randint(0, 2)
        elif way == "acknowledge":
            yield way, name, random.randint(1, 4)
        elif way == "reload":
            yield way, EVERYTHING if random.random() < 0.4 else some(random, RIGHTS)
        else:
            yield way, name


def some(random: Random, values: list[str]) -> set[str]:
    return {value for value in values if random.random() < 0.4}


class World:
    """A broker, its rules, and what every write to a reader is compared with."""

    def __init__(self, running: Running, rules: Path) -> None:
        self.running = running
        self.rules = rules
        self.rights: set[str] = set()
        self.clients: dict[str, Client] = {}
        self.unacknowledged: dict[str, deque[Publish]] = {name: deque() for name in READERS}
        self.leaks: list[tuple[str, str]] = []
        self.number = 0
        running.inside.watch_sent(self.sent)

    def sent(self, name: str, data: bytes) -> None:
        """Look at bytes on their way to a client."""
        while name in READERS and data:
            found = read_fixed_header(data[:5], 5)
            assert found is not None
            first, length, size = found
            packet = decode(first, data[size : size + length], 5, from_client=False)
            data = data[size + length :]
            if isinstance(packet, Publish) and not self.may_read(packet.topic):
                self.leaks.append((name, packet.topic))

    def may_read(self, topic: str) -> bool:
        """The rules in plain words."""
        words = [right.split() for right in self.rights]
        hits = [one[0] for one in words if matches(parse_filter(one[-1]), topic)]
        return topic in ("z", "$replay/live") or ("read" in hits and "deny" not in hits)

    async def begin(self) -> None:
        self.pub = await self.running.client("pub", clean=True, expiry=0)
        member = await self.running.client("member", clean=True, expiry=0)
        await member.subscribe("$share/g/a/#", "$share/h/b/1")
        keeper = await self.running.client("keeper")
        await keeper.subscribe("z")

    async def publish(self, topic: str, qos: int, retain: bool) -> None:
        self.number += 1
        self.pub.send(Publish(topic, b"%d" % self.number, qos, retain, packet_id=1 if qos else 0))
        if qos == 1:
            await self.pub.expect(Puback)
        elif qos == 2:
            await self.pub.expect(Pubrec)
            self.pub.send(Pubrel(1))
            await self.pub.expect(Pubcomp)
        await self.pub.nothing_more()

    async def come(self, name: str) -> None:
        if name not in self.clients:
            self.clients[name] = await self.running.client(name, expiry=READERS[name], receive_maximum=2)
            self.unacknowledged[name].clear()

    async def go(self, name: str) -> None:
        if name in self.clients:
            await self.clients.pop(name).drop()
            await eventually(lambda: name not in self.running.inside.connected_ids)

    async def subscribe(self, name: str, text: str, qos: int) -> None:
        await self.come(name)
        self.clients[name].send(Subscribe(1, (Subscription(text, qos),)))
        await self.take_until(name, Suback)

    async def acknowledge(self, name: str, count: int) -> None:
        """Answer some of what has come, and take what follows."""
        await self.come(name)
        client = self.clients[name]
        await self.take(name)
        for _ in range(count):
            if self.unacknowledged[name]:
                packet = self.unacknowledged[name].popleft()
                client.send(Pubrec(packet.packet_id) if packet.qos == 2 else Puback(packet.packet_id))
        await self.take(name)

    async def take(self, name: str) -> list[str]:
        self.clients[name].send(Pingreq())
        return await self.take_until(name, Pingresp)

    async def take_until(self, name: str, kind: type) -> list[str]:
        """Take what comes; the topics of messages."""
        topics = []
        while not isinstance(packet := await self.clients[name].receive(), kind):
            if isinstance(packet, Publish):
                topics.append(packet.topic)
                if packet.qos:
                    self.unacknowledged[name].append(packet)
            elif isinstance(packet, Pubrel):
                self.clients[name].send(Pubcomp(packet.packet_id))
        return topics

    async def reload(self, rights: set[str]) -> None:
        lines = [f"client {name} {right}\n" for name in READERS for right in sorted(rights)]
        self.rules.write_text(ALWAYS + "".join(lines))
        self.rights = rights
        self.running.inside.reload()
        await asyncio.sleep(0)

    async def end(self) -> None:
        """Nothing has leaked, and nothing that was withheld stands in the way of what follows."""
        for name in READERS:
            await self.subscribe(name, "z", 1)
        await self.publish("z", 1, False)
        for name in READERS:
            came: list[str] = []
            async with asyncio.timeout(20):
                while "z" not in came:
                    while self.unacknowledged[name]:
                        packet = self.unacknowledged[name].popleft()
                        self.clients[name].send(
                            Pubrec(packet.packet_id) if packet.qos == 2 else Puback(packet.packet_id)
                        )
                    came += await self.take(name)
        assert self.leaks == []


async def live(seed: int, rules: Path) -> None:
    async with Running(Disk(), security=Security(acl_file=str(rules)), keep=[("a/2", 1)]) as running:
        world = World(running, rules)
        await world.begin()
        await world.reload(EVERYTHING)
        for name, *arguments in course_of(Random(seed), 100):
            await getattr(world, name)(*arguments)
        await world.end()


@pytest.mark.parametrize("seed", range(30))
def test_no_byte_of_a_denied_topic_is_sent_after_the_reload(tmp_path: Path, seed: int) -> None:
    rules = tmp_path / "acl"
    rules.write_text(ALWAYS)
    asyncio.run(live(seed, rules))
