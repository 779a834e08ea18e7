"""A persist server: requests from a bus to the state shards that it owns, replies and feed events back.

What arrives together is handled together and ends in one commit a shard; what is answered together leaves together.
All of it runs on one event loop's thread. A request that is asked for again while it is under way is answered once.

On storage that several servers share, a server answers while it may be sure to be the owner (`serve_until`). A shard
that it gave away is refused in its name for a while (`retire`), so that callers ask the next owner soon.
Above 400 lines: it is the one place that knows every kind of frame.
"""

import asyncio
import contextlib
import logging
import math
import secrets
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import msgspec

from everlog import __version__
from everlog.base import UsageError
from everlog.bus import (
    AGAIN,
    HEADER_BYTES,
    HELLO,
    LAST,
    READ,
    VERSION,
    WRITE,
    Assembly,
    BadFrame,
    Bus,
    Delivery,
    Frame,
    FrameKind,
    Subscription,
    Welcome,
    decode_frame,
    encode_frame,
    feed_subject,
    parse_request,
    request_patterns,
    split_frame,
    up_subject,
)
from everlog.persist.arrivals import Allowed, UnderWay, answers_of, take_plain
from everlog.persist.bad_requests import unreadable
from everlog.persist.followers import Followers
from everlog.persist.owned_shard import OwnedShard
from everlog.persist.ports import ShardOpener
from everlog.persist.rights import SERIES, SIMPLE, check
from everlog.persist.series import Series
from everlog.streams import Answer, Asked, Call, ErrorCode, Failure, FeedBootstrap, FeedEvent, FeedResume, QueueLag

TICK_S = 0.5
IDLE_S = 60.0  # a series whose caller says nothing for so long is given up
UNKNOWN_SERIES = 0xFFFF_FFFF  # the number of the reply that says so
_REQUEST = bytes((VERSION, FrameKind.REQUEST))
_NUMBERS = struct.Struct("<HIQ")  # flags, number and id of a frame
_SUBJECTS = 100_000  # whose rights are remembered
_ACTIVE = 200_000  # requests under way; beyond it they are answered BUSY
_THREADS = 4  # that open and close shards
_log = logging.getLogger("everlog.persist")


Owner: TypeAlias = tuple[str, int]  # name or address of a shard's owner, and its epoch; ("", 0) if nobody knows


class PersistServer:
    """One server on a bus. `own` and `disown` say which shards it serves."""

    def __init__(self, bus: Bus, opener: ShardOpener, name: str = "", address: str = "", store: str = "") -> None:
        self._bus = bus
        self._opener = opener
        self.name = name or f"server-{secrets.token_hex(4)}"
        self._address = address
        self._store = store
        self._shards: dict[int, OwnedShard] = {}
        self._subscriptions: dict[int, list[Subscription]] = {}
        self._touched: set[OwnedShard] = set()
        self._active: dict[tuple[str, int], Series | None] = {}
        self._under_way = UnderWay()  # plain writes; all others are in `_active`
        self._assembly = Assembly()
        self._followers = Followers()
        self._allowed: dict[str, Allowed] = {}  # by subject
        self._call = msgspec.msgpack.Decoder(Call).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._turn_is_due = False
        self._loop: asyncio.AbstractEventLoop
        self._ticker: asyncio.Task[None] | None = None
        self._hello: Subscription | None = None
        self._threads = ThreadPoolExecutor(_THREADS, "everlog-persist-shards")
        self._retired: dict[int, list[Subscription]] = {}
        self.requests = 0
        self.serve_until = math.inf  # by time.monotonic(); nothing is answered after it
        self.owner_of: Callable[[int], Owner] = lambda shard: ("", 0)
        self.tell: Callable[[Welcome], Welcome] = lambda welcome: welcome  # adds what others know of this server

    async def start(self) -> None:
        """Open the bus and answer who we are; shards are served from `own` on."""
        self._loop = asyncio.get_running_loop()
        await self._bus.open()
        self._bus.watch(self._bus_changed)
        self._hello = await self._bus.subscribe(HELLO, self._greet)
        self._ticker = self._loop.create_task(self._tick())

    async def stop(self) -> None:
        """Hand over all shards and leave the bus."""
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        if self._hello is not None:
            self._hello.cancel()
        for shard in list(self._shards):
            await self.disown(shard)
        await self._bus.close()
        self._threads.shutdown()

    @property
    def owned(self) -> set[int]:
        """The shards that it serves."""
        return set(self._shards)

    async def own(self, shard: int, lost: Callable[[int], None] | None = None) -> None:
        """Serve a shard from now on; `lost` is told if it can't go on (see `OwnedShard`)."""
        if shard in self._shards:
            return
        self.forget(shard)
        owned = OwnedShard(
            shard,
            self._opener,
            self._threads,
            self._post,
            self._followers.until,
            self._feed,
            self._answered,
            self._not_owner,
            lost,
        )
        self._shards[shard] = owned
        handler = partial(self._requests, owned)
        subscriptions = self._subscriptions[shard] = []
        try:
            for pattern in request_patterns(shard):
                subscriptions.append(await self._bus.subscribe(pattern, handler))
        except BaseException:
            await self.disown(shard)
            raise
        self._say_up(shard)

    async def disown(self, shard: int) -> None:
        """Take no more requests of a shard, finish what is under way, and close it."""
        self.forget(shard)
        for subscription in self._subscriptions.pop(shard, []):
            subscription.cancel()
        await self._close(shard)

    async def retire(self, shard: int) -> None:
        """Finish what is under way in a shard and close it; refuse what comes, and say who has it, until `forget`."""
        self._retired.setdefault(shard, []).extend(self._subscriptions.pop(shard, []))
        await self._close(shard)

    def forget(self, shard: int) -> None:
        """Listen no more to requests of a shard that was retired."""
        for subscription in self._retired.pop(shard, []):
            subscription.cancel()

    async def _close(self, shard: int) -> None:
        for key in [key for key, one in self._active.items() if one is not None and one.shard == shard]:
            self._end(*key)
        owned = self._shards.pop(shard, None)
        if owned is not None:
            owned.turn()
            await owned.close()

    def _not_owner(self, shard: int) -> Failure:
        """Return the refusal of a request to a shard that is another server's."""
        owner, epoch = self.owner_of(shard)
        whose = f"{owner} has it" if owner else "nobody has it just now"
        return Failure(ErrorCode.NOT_OWNER, f"shard {shard} is not {self.name}'s: {whose}", "", epoch, owner)

    # Requests

    def _requests(self, owned: OwnedShard, deliveries: list[Delivery]) -> None:
        """Take what arrived together for one shard; the turn ends after all that is there now."""
        if time.monotonic() > self.serve_until:
            self._refuse_all(deliveries)
            return
        if owned.plain is not None:
            before = len(deliveries)
            room = _ACTIVE - self._waiting
            deliveries = take_plain(deliveries, owned.plain, self._allowed, self._under_way, self._active, room)
            self.requests += before - len(deliveries)
            if owned.plain.answered:
                self._answered(owned.plain.answered)
                owned.plain.answered = []
        for delivery in deliveries:
            payload = delivery.payload
            if payload[:2] == _REQUEST and len(payload) > HEADER_BYTES and delivery.reply:
                _, window, id = _NUMBERS.unpack_from(payload, 2)
                self._request(owned, delivery, id, window, payload)
                continue
            try:
                self._take(owned, delivery, decode_frame(payload))
            except BadFrame as error:
                self._refuse(delivery, error)
        self._touched.add(owned)
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _take(self, owned: OwnedShard, delivery: Delivery, frame: Frame) -> None:
        reply = delivery.reply
        if not reply:
            return  # nobody could be told anything
        if frame.kind is FrameKind.REQUEST:  # one that came in parts
            self._request(owned, delivery, frame.id, frame.number, encode_frame(*frame))
        elif frame.kind is FrameKind.PART:
            whole = self._assembly.add(f"{delivery.subject} {reply}", frame, self._loop.time())
            if whole is not None:
                self._take(owned, delivery, decode_frame(whole))
        elif frame.kind is FrameKind.CREDIT:
            series = self._active.get((reply, frame.id))
            if series is None:
                self._reply(delivery, frame.id, UNKNOWN_SERIES, Failure(ErrorCode.UNAVAILABLE, "no such series"))
                return
            series.credit(frame.number, frame.flags & ~AGAIN, bool(frame.flags & AGAIN), self._loop.time())
            if series.is_over:
                self._end(reply, frame.id)
        elif frame.kind is FrameKind.CANCEL:
            self._end(reply, frame.id)

    def _request(self, owned: OwnedShard, delivery: Delivery, id: int, window: int, payload: bytes) -> None:
        self.requests += 1
        active, key = self._active, (delivery.reply, id)
        if self._under_way.has(delivery.reply, id):
            return
        if key in active:
            series = active[key]
            if series is not None:  # its first replies were lost
                series.credit(0, window, True, self._loop.time())
            return
        try:
            call = self._call(memoryview(payload)[HEADER_BYTES:])
            failure = self._check(delivery.subject, call)
        except msgspec.DecodeError as error:
            failure = unreadable(error, memoryview(payload)[HEADER_BYTES:])
        except UsageError as error:
            failure = Failure(ErrorCode.BAD_REQUEST, error.message, error.hint)
        if failure is None and self._waiting >= _ACTIVE:
            failure = Failure(ErrorCode.BUSY, "too many requests are under way")
        if failure is not None:
            self._reply(delivery, id, 0, failure)
            return
        active[key] = None
        request = call.request
        if type(request) in SERIES:
            if isinstance(request, FeedBootstrap | FeedResume):
                self._followers.add(request.stream, self._loop.time())
            owned.handle(call, partial(self._answer_series, owned.number, delivery, id, window))
        else:
            if type(request) is QueueLag:  # whoever looks how long a queue is waits for more
                self._followers.add(request.stream, self._loop.time())
            owned.handle(call, partial(self._answer, delivery, id))

    @property
    def _waiting(self) -> int:
        """How many requests are under way."""
        return len(self._active) + len(self._under_way)

    def _check(self, subject: str, call: Call) -> Failure | None:
        """Return why a request may not be done; what its subject allows is looked up, since most come again."""
        request = call.request
        allowed = self._allowed.get(subject)
        if allowed is not None and request.stream == allowed.name and type(request) in allowed.kinds:
            return None
        place = parse_request(subject)
        failure = check(place, call, self._opener.shards)
        if failure is None:
            if len(self._allowed) >= _SUBJECTS:
                self._allowed.clear()
            right = place.right
            self._allowed[subject] = Allowed(place.name, SIMPLE[right], right == WRITE, right == READ)
        return failure

    def _answer(self, delivery: Delivery, id: int, answer: Answer) -> None:
        self._active.pop((delivery.reply, id), None)
        self._reply(delivery, id, 0, answer)

    def _answer_series(
        self, shard: int, delivery: Delivery, id: int, window: int, answers: Iterator[Answer] | Answer
    ) -> None:
        if isinstance(answers, Answer):
            self._answer(delivery, id, answers)
            return
        send = partial(self._reply, delivery, id)
        series = Series(answers, window, send, self._loop.call_soon, self._loop.time(), shard)
        if (delivery.reply, id) not in self._active:  # cancelled meanwhile
            series.close()
            return
        self._active[delivery.reply, id] = series
        series.pump()

    def _reply(self, delivery: Delivery, id: int, number: int, answer: Answer) -> None:
        data = encode_frame(FrameKind.REPLY, id, number, LAST if answer.is_last else 0, self._encode(answer))
        self._send(delivery.reply, data, delivery.correlation)

    def _answered(self, answered: list[Asked]) -> None:
        """Send the answers to plain requests."""
        messages, large = answers_of(answered, self._under_way, self._bus.max_payload)
        self._bus.publish_all(messages)
        for one in large:
            self._send(one.subject, one.payload, one.correlation)

    def _send(self, subject: str, data: bytes, correlation: bytes = b"") -> None:
        if len(data) <= self._bus.max_payload:
            self._bus.publish(subject, data, "", correlation)
            return
        for part in split_frame(data, self._bus.max_payload):
            self._bus.publish(subject, part, "", correlation)

    def _refuse_all(self, deliveries: list[Delivery]) -> None:
        """Answer that nothing can be answered: others may have declared this server dead and taken its shards."""
        failure = Failure(ErrorCode.UNAVAILABLE, f"{self.name} can't be sure just now that it owns the shard")
        for delivery in deliveries:
            if delivery.reply and delivery.payload[:2] == _REQUEST:
                self._reply(delivery, int.from_bytes(delivery.payload[8:16], "little"), 0, failure)

    def _refuse(self, delivery: Delivery, error: BadFrame) -> None:
        """Answer bytes that are no frame, as far as they tell which request they were."""
        if delivery.reply:
            id = int.from_bytes(delivery.payload[8:16], "little")
            self._reply(delivery, id, 0, Failure(ErrorCode.BAD_REQUEST, error.message, error.hint))

    def _end(self, reply: str, id: int) -> None:
        series = self._active.pop((reply, id), None)
        if series is not None:
            series.close()

    # Turns

    def _turn(self) -> None:
        self._turn_is_due = False
        touched, self._touched = self._touched, set()
        for owned in touched:
            owned.turn()

    def _post(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended while a commit was under way
            self._loop.call_soon_threadsafe(call)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = self._loop.time()
            self._assembly.sweep(now)
            self._followers.sweep(now)
            idle = [key for key, one in self._active.items() if one is not None and now - one.touched > IDLE_S]
            for key in idle:
                self._end(*key)
            for owned in list(self._shards.values()):
                owned.tick()

    # Feeds, and who we are

    def _feed(self, shard: int, events: list[FeedEvent]) -> None:
        by_name: dict[str, list[FeedEvent]] = {}
        for event in events:
            by_name.setdefault(event.stream, []).append(event)
        for name, several in by_name.items():
            self._tell(feed_subject(shard, name), several)

    def _tell(self, subject: str, events: list[FeedEvent]) -> None:
        data = encode_frame(FrameKind.EVENTS, events[0].position, body=self._encode(events))
        if len(data) > self._bus.max_payload and len(events) > 1:
            half = len(events) // 2
            self._tell(subject, events[:half])
            self._tell(subject, events[half:])
        else:
            self._send(subject, data)

    def _bus_changed(self, is_open: bool) -> None:
        if is_open:
            for shard in self._shards:
                self._say_up(shard)

    def _say_up(self, shard: int) -> None:
        self._bus.publish(up_subject(shard), encode_frame(FrameKind.UP, 0))

    def _greet(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            with contextlib.suppress(BadFrame):
                frame = decode_frame(delivery.payload)
                if frame.kind is FrameKind.HELLO and delivery.reply:
                    body = self._encode(self.welcome())
                    self._send(
                        delivery.reply, encode_frame(FrameKind.WELCOME, frame.id, body=body), delivery.correlation
                    )

    def welcome(self) -> Welcome:
        """Return who this server is, and how it does."""
        unfiled = [one.unfiled for one in self._shards.values()]
        welcome = Welcome(
            server=self.name,
            address=self._address,
            shards=self._opener.shards,
            owned=sorted(self._shards),
            opened=sorted(number for number, one in self._shards.items() if one.is_open),
            protocol=VERSION,
            version=__version__,
            requests=self.requests,
            under_way=self._waiting,
            followed=len(self._followers),
            unfiled_rows=sum(rows for rows, _ in unfiled),
            unfiled_bytes=sum(size for _, size in unfiled),
            store=self._store,
        )
        return self.tell(welcome)
