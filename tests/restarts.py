"""Brokers that stop and crash: one after the other on the same tables and the same log, all on the test's own loop."""

import asyncio
import contextlib
import copy
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from everlog.base import StorageError
from everlog.broker import Broker
from everlog.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Packet,
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
    decode,
    encode,
    read_fixed_header,
)
from everlog.sessions import Changes, Refused, unpack_offsets
from tests.brokers import serve_on
from tests.inside import Inside
from tests.memory_log import MemoryLog
from tests.memory_tables import MemoryTables

P = TypeVar("P")
_NOT_STORED = ("applied", "failing", "_synced", "_committed")


class Disk:
    """What outlives a broker: tables and log. `after_crash` is what a power cut at this moment would leave."""

    def __init__(self, shards: int = 1) -> None:
        self.log = MemoryLog(shards)
        self.tables = SlowTables(self.committed)
        self.now_us = 1_000_000_000_000_000

    def committed(self) -> list[int]:
        return [shard.committed for shard in self.log.shards]

    def after_crash(self) -> "Disk":
        left = Disk(len(self.log.shards))
        left.tables = self.tables.durable(left.committed)
        left.now_us = self.now_us
        for old, new in zip(self.log.shards, left.log.shards, strict=True):
            new.batches = list(old.batches)
            new.end = new.committed = old.committed
        return left


class SlowTables(MemoryTables):
    """Tables that can be told to wait, to fail, and to forget what was not synced."""

    def __init__(self, committed: Callable[[], Sequence[int]] | None = None) -> None:
        super().__init__()
        self._committed = committed  # where each shard ends: no position above it may be stored
        self.applied: list[tuple[Changes, bool]] = []
        self.failing = False
        self._synced: dict[str, Any] = copy.deepcopy(self._state())

    def _state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _NOT_STORED}

    def apply(self, changes: Changes, durable: bool = False) -> Refused:
        if self.failing:
            raise StorageError("no room")
        if self._committed is not None:
            check_positions(changes, self._committed())
        refused = super().apply(changes, durable)
        self.applied.append((changes, durable))
        if durable:
            self._synced = copy.deepcopy(self._state())
        return refused

    def durable(self, committed: Callable[[], Sequence[int]] | None = None) -> "SlowTables":
        left = SlowTables(committed)
        vars(left).update(copy.deepcopy(self._synced))
        return left


def check_positions(changes: Changes, committed: Sequence[int]) -> None:
    """Fail if a begin, a cursor, a group or what is routed lies above the committed end of its shard."""
    stored = [unpack_offsets(row.since) for _, row in changes.subscribed]
    stored += [unpack_offsets(cursor.positions) for _, cursor in changes.cursors]
    stored += [unpack_offsets(row.positions) for row in changes.groups]
    stored += [changes.routed or (), changes.retained_at or ()]
    for positions in stored:
        above = [(at, end) for at, end in zip(positions, committed, strict=False) if at > end]
        assert not above, f"stored positions above the committed end: {above}"


class Running:
    """`async with Running(disk) as broker:`; leaving it is a clean stop."""

    keep: ClassVar[list[tuple[str, int]]] = []  # unless the settings say so

    def __init__(self, disk: Disk, **settings: Any) -> None:
        self.disk = disk
        self._settings = {"keep": self.keep, **settings}
        self._clients: list[Client] = []
        self._stopped = False
        self.broker: Broker
        self.inside: Inside
        self.port = 0

    async def __aenter__(self) -> "Running":
        disk = self.disk
        self.broker = Broker(disk.log, tables=disk.tables, now_us=lambda: disk.now_us, **self._settings)
        self.inside = Inside(self.broker)
        self.broker.start()
        self._server, self.port = await serve_on(self.broker)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if not self._stopped:
            self._stopped = True
            self._server.close()
            await self.broker.stop()
            await self._server.wait_closed()
            for client in self._clients:
                await client.drop()

    def advance(self, seconds: float) -> None:
        """Let wall-clock time pass, and what is due happen."""
        self.disk.now_us += int(seconds * 1_000_000)
        self.inside.sweep_clients()

    async def saved(self) -> None:
        """Everything that has changed is durable."""
        await self.inside.save()

    async def client(self, client_id: str, **connect: Any) -> "Client":
        client = await Client.open(self.port, client_id, **connect)
        self._clients.append(client)
        return client


class Client:
    """An MQTT 5 client, packet by packet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.connack: Connack

    @classmethod
    async def open(
        cls,
        port: int,
        client_id: str,
        *,
        clean: bool = False,
        expiry: int = 1000,
        receive_maximum: int | None = None,
        answer: bool = True,
        **more: Any,
    ) -> "Client":
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        properties = Properties(session_expiry_interval=expiry, receive_maximum=receive_maximum)
        client.send(Connect(5, client_id, clean_start=clean, properties=properties, **more))
        if answer:
            client.connack = await client.expect(Connack)
        return client

    def send(self, *packets: Packet) -> None:
        self._writer.write(b"".join(encode(packet, 5) for packet in packets))

    async def receive(self) -> Packet:
        head = await asyncio.wait_for(self._reader.readexactly(2), 20)
        while (found := read_fixed_header(head, 5)) is None:
            head += await self._reader.readexactly(1)
        body = await self._reader.readexactly(found[1])
        return decode(head[0], body, 5, from_client=False)

    async def expect(self, kind: type[P]) -> P:
        packet = await self.receive()
        assert isinstance(packet, kind), packet
        return packet

    async def publishes(self, count: int) -> list[Publish]:
        return [await self.expect(Publish) for _ in range(count)]

    async def nothing_more(self) -> None:
        """What was sent before the answer to a ping has arrived: there is nothing but the answer."""
        self.send(Pingreq())
        await self.expect(Pingresp)

    async def subscribe(self, *filters: str, qos: int = 1) -> Suback:
        self.send(Subscribe(1, tuple(Subscription(text, qos) for text in filters)))
        return await self.expect(Suback)

    async def unsubscribe(self, *filters: str) -> Unsuback:
        self.send(Unsubscribe(2, filters))
        return await self.expect(Unsuback)

    async def publish(self, topic: str, payload: bytes = b"x", **more: Any) -> None:
        """At QoS 1, until it is acknowledged."""
        self.send(Publish(topic, payload, qos=1, packet_id=1, **more))
        await self.expect(Puback)

    async def leave(self) -> None:
        self.send(Disconnect())
        await self.gone()

    async def drop(self) -> None:
        """Close without a DISCONNECT."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def gone(self) -> None:
        """Until the broker has closed the connection."""
        while await asyncio.wait_for(self._reader.read(4096), 20):
            pass
        await self.drop()


async def eventually(condition: Any) -> None:
    """Let the loop run until something is so."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
