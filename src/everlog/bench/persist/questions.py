"""How Everlog and JetStream are asked the same things: make streams, append, put and get a key, follow, read back."""

from abc import abstractmethod
from typing import NamedTuple

import msgspec

from everlog.bench.persist.wires import Request
from everlog.bus import HELLO, READ, WRITE, FrameKind, encode_frame, feed_subject, request_subject, shard_of_name
from everlog.streams import AnyRequest, Call, FeedBootstrap, KvGet, KvPut, Level, Message, Set

_ID = "0123456789abcdef"  # where a message id belongs


class Asked(NamedTuple):
    """Requests, and what is in an answer that is a good one."""

    requests: list[Request]
    mark: bytes


class Questions:
    """The questions to one of the contenders."""

    counts_events = False  # deliveries have several changes each
    tells_backlog = False  # servers say what waits for its file

    @abstractmethod
    def begin(self, streams: int) -> Asked:
        """Return what makes streams, or shows that somebody is there."""

    @abstractmethod
    def append(self, number: int, size: int, level: Level, with_id: bool) -> Asked:
        """Return an append to a stream."""

    @abstractmethod
    def begin_store(self) -> Asked:
        """Return what makes a key-value store."""

    @abstractmethod
    def put(self, key: int, size: int) -> Asked:
        """Return what gives a key a value."""

    @abstractmethod
    def get(self, key: int) -> Asked:
        """Return what asks for a key's value."""

    @abstractmethod
    def follow(self, number: int, inbox: str) -> Asked:
        """Return what has all messages of a stream, or those from now on, sent to a follower."""

    @abstractmethod
    def feed(self, number: int) -> list[str]:
        """Return what a follower subscribes to, besides its inbox."""


class EverlogQuestions(Questions):
    """In the persist protocol; one state shard, as on one machine, or several."""

    counts_events = True
    tells_backlog = True

    def __init__(self, shards: int = 1) -> None:
        self._shards = shards

    def _ask(self, right: str, request: AnyRequest, mark: bytes, with_id: bool = False) -> Asked:
        payload = encode_frame(FrameKind.REQUEST, 0, 8, 0, msgspec.msgpack.encode(Call(request)))
        text_at = payload.index(_ID.encode()) if with_id else 0
        subject = request_subject(shard_of_name(request.stream, self._shards), right, request.stream)
        return Asked([Request(subject, payload, 8, text_at)], mark)

    def begin(self, streams: int) -> Asked:
        return Asked([Request(HELLO, encode_frame(FrameKind.HELLO, 1), 8)], b"server")

    def append(self, number: int, size: int, level: Level, with_id: bool) -> Asked:
        request = Set(f"bench/{number}", Message(bytes(size)), None, _ID if with_id else None, 0, level)
        return self._ask(WRITE, request, b"written", with_id)

    def begin_store(self) -> Asked:
        return self.begin(0)

    def put(self, key: int, size: int) -> Asked:
        return self._ask(WRITE, KvPut("bench/store", f"key-{key}", Message(bytes(size))), b"written")

    def get(self, key: int) -> Asked:
        return self._ask(READ, KvGet("bench/store", f"key-{key}"), b"entries")

    def follow(self, number: int, inbox: str) -> Asked:
        return self._ask(READ, FeedBootstrap(f"bench/{number}"), b"ok")

    def feed(self, number: int) -> list[str]:
        return [feed_subject(0, f"bench/{number}")]


class JetStreamQuestions(Questions):
    """As JetStream has them."""

    def begin(self, streams: int) -> Asked:
        return Asked([self._make(f"S{number}", f"bench.{number}") for number in range(streams)], b'"config"')

    def _make(self, name: str, subject: str, **more: object) -> Request:
        config = {"name": name, "subjects": [subject], "storage": "file", **more}
        return Request(f"$JS/API/STREAM/CREATE/{name}", msgspec.json.encode(config))

    def append(self, number: int, size: int, level: Level, with_id: bool) -> Asked:
        return Asked([Request(f"bench/{number}", bytes(size))], b'"seq":')

    def begin_store(self) -> Asked:
        made = self._make("KV_bench", "$KV.bench.>", max_msgs_per_subject=1, allow_direct=True, discard="new")
        return Asked([made], b'"config"')

    def put(self, key: int, size: int) -> Asked:
        return Asked([Request(f"$KV/bench/key-{key}", bytes(size))], b'"seq":')

    def get(self, key: int) -> Asked:
        return Asked([Request(f"$JS/API/DIRECT/GET/KV_bench/$KV/bench/key-{key}", b"")], b"NATS/1.0")

    def follow(self, number: int, inbox: str) -> Asked:
        config = {"deliver_subject": inbox.replace("/", ".") + ".d", "ack_policy": "none", "deliver_policy": "all"}
        body = msgspec.json.encode({"stream_name": f"S{number}", "config": config})
        return Asked([Request(f"$JS/API/CONSUMER/CREATE/S{number}", body)], b'"config"')

    def feed(self, number: int) -> list[str]:
        return []
