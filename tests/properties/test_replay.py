"""Replays among other subscriptions against a plain model: who gets what, in which order, by which subscriptions."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.memory_log import SteppingLog
from tests.restarts import Client, Disk, Running

from everlog.mqtt import (
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from everlog.topics import matches, parse_filter

FILTERS = ("a", "b", "+", "a/#")
TOPICS = ("a", "b", "a/x", "c")

steps = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.sampled_from(TOPICS), min_size=1, max_size=6)),
    st.tuples(st.just("subscribe"), st.sampled_from(FILTERS)),
    st.tuples(st.just("unsubscribe"), st.sampled_from(FILTERS)),
    st.tuples(st.just("replay"), st.sampled_from(FILTERS), st.integers(0, 30)),
    st.tuples(st.just("acknowledge"), st.integers(1, 8)),
    st.tuples(st.just("reconnect")),
)


@dataclass
class Model:
    """One session and the log, in the plainest way."""

    window: int
    log: list[str] = field(default_factory=list)
    begins: dict[str, int] = field(default_factory=dict)
    at: int = 0  # the first offset not handed over
    under_way: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    expected: list[tuple[int, tuple[int, ...], bool]] = field(default_factory=list)

    def advance(self) -> None:
        while self.at < len(self.log):
            by = tuple(
                FILTERS.index(text) + 1
                for text in FILTERS
                if text in self.begins
                and self.begins[text] <= self.at
                and matches(parse_filter(text), self.log[self.at])
            )
            if by:
                if len(self.under_way) >= self.window:
                    return
                self.under_way.append((self.at, by))
                self.expected.append((self.at, by, False))
            self.at += 1

    def replay(self, text: str, begin: int) -> None:
        begin = min(begin, len(self.log))
        if begin < self.at:
            for other in self.begins:
                self.begins[other] = max(self.begins[other], self.at)
        self.begins[text] = begin
        self.at = min(self.at, begin)


async def run(program: list[Any], window: int) -> None:
    disk = Disk()
    disk.log = SteppingLog()
    async with Running(disk, keep=[("#", 0)]) as running:
        publisher = await running.client("p", clean=True, expiry=0)
        client = await connected(running, window)
        model = Model(window)
        got: list[tuple[int, tuple[int, ...], bool]] = []
        ids: list[int] = []
        for name, *arguments in [*program, ("acknowledge", 1000)]:
            if name == "publish":
                for topic in arguments[0]:
                    await publisher.publish(topic, str(len(model.log)).encode())
                    model.log.append(topic)
                    model.advance()
            elif name in ("subscribe", "replay"):
                text = arguments[0]
                pairs = (("everlog-from", f"0:{arguments[1]}"),) if name == "replay" else ()
                number = FILTERS.index(text) + 1
                properties = Properties(user_properties=pairs, subscription_identifiers=(number,))
                client.send(Subscribe(1, (Subscription(text, 1),), properties))
                await take(client, Suback, got, ids)
                if name == "replay":
                    model.replay(text, arguments[1])
                else:
                    model.begins.setdefault(text, len(model.log))
            elif name == "unsubscribe":
                client.send(Unsubscribe(1, (arguments[0],)))
                await take(client, Unsuback, got, ids)
                model.begins.pop(arguments[0], None)
            elif name == "reconnect":
                await ping(client, got, ids)
                await client.drop()
                client = await connected(running, window)
                model.expected += [(at, (), True) for at, _ in model.under_way]
                ids.clear()
                await ping(client, got, ids)
            else:
                await ping(client, got, ids)
                for _ in range(arguments[0]):
                    if not ids:
                        break
                    client.send(Puback(ids.pop(0)))
                    model.under_way.pop(0)
                    model.advance()
                    await ping(client, got, ids)
            model.advance()
        await ping(client, got, ids)
        await client.drop()
        plain = [(at, () if again else by, again) for at, by, again in got]
        assert plain == model.expected


async def connected(running: Running, window: int) -> Client:
    client = Client(*await asyncio.open_connection("127.0.0.1", running.port))
    properties = Properties(session_expiry_interval=1000, receive_maximum=window)
    client.send(Connect(5, "c", clean_start=False, properties=properties))
    await client.expect(Connack)
    return client


async def ping(client: Client, got: list[Any], ids: list[int]) -> None:
    client.send(Pingreq())
    await take(client, Pingresp, got, ids)


async def take(client: Client, kind: type, got: list[Any], ids: list[int]) -> None:
    """Everything up to an answer."""
    while not isinstance(packet := await client.receive(), kind):
        assert isinstance(packet, Publish)
        got.append((int(packet.payload), packet.properties.subscription_identifiers, packet.dup))
        ids.append(packet.packet_id)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, max_size=25), st.sampled_from([1, 3, 50]))
def test_a_session_gets_what_the_model_says(program: list[Any], window: int) -> None:
    asyncio.run(run(program, window))
