"""The router's way to shards of other brokers: what is forwarded, and what the acks wait for."""

from typing import Any

from tests.parts import RouterStage

from everlog.base import RecordBuilder


class NotedForwarder:
    """Counts what it is handed, and sends nothing."""

    def __init__(self, shards: int) -> None:
        self.numbers = [0] * shards
        self.confirmed = [0] * shards
        self.payloads: list[bytes] = []
        self.sent = 0
        self.shared = 0
        self.size = 0

    def forward(
        self, columns: Any, start: int, stop: int, now_us: int, table: Any, routes: Any, wanted: int, publisher: Any
    ) -> int:
        builder = RecordBuilder()
        taken = builder.append(columns, start, stop, now_us, table, routes, wanted, publisher)
        if taken:
            self.payloads += [row[-1] for row in builder.take(0).rows()]
        self.numbers[wanted] += taken
        return taken

    def pending_bytes(self, shard: int) -> int:
        return self.size

    def send(self) -> None:
        self.sent = len(self.payloads)

    def share(self, columns: Any, start: int, stop: int, now_us: int, table: Any, routes: Any) -> None:
        self.shared += stop - start

    def retain(self, records: Any, first: int) -> None:
        pass

    def committed(self) -> None:
        pass


def _stage() -> tuple[RouterStage, NotedForwarder]:
    forwarder = NotedForwarder(1)
    stage = RouterStage(manual=True, forwarder=forwarder)
    stage.kept.add("#")
    return stage, forwarder


def test_a_message_of_another_brokers_shard_is_forwarded_and_its_ack_waits_for_the_number():
    stage, forwarder = _stage()
    client = stage.client("#")
    stage.publish("own", sink=client)
    stage.router.elsewhere[0] = 1
    stage.publish("1", "2", sink=client)
    assert (forwarder.payloads, forwarder.sent, forwarder.numbers) == ([b"1", b"2"], 2, [3])
    stage.log.commit_now()
    stage.router.committed()
    assert client.answered == [(b"ack", 1)]
    stage.router.forwarded(0, 2)
    assert client.answered == [(b"ack", 1)]
    stage.router.forwarded(0, 3)
    assert client.answered == [(b"ack", 1), (b"ack", 2)]
    assert client.payloads == ["own"]


def test_what_proves_that_a_message_is_committed_is_a_number_wherever_its_shard_is_owned():
    stage, forwarder = _stage()
    client = stage.client("#")
    stage.publish("1", "2", sink=client)
    assert stage.router.proofs(stage.router.taken) == [(0, 2)]
    stage.router.elsewhere[0] = 1
    stage.publish("3", sink=client)
    assert stage.router.taken == [(1, 3)]
    assert stage.router.proofs(stage.router.taken) == [(0, 3)]
    forwarder.confirmed[0] = 3
    assert stage.router.proven() == [3]


def test_too_much_that_is_not_confirmed_holds_back_who_publishes_there():
    stage, forwarder = _stage()
    forwarder.size, forwarder.numbers = stage.router.max_unwritten_bytes + 1, [1]
    assert stage.router.is_behind()
    assert list(stage.router.late[:2]) == [0, 1]
    forwarder.size = 0
    assert not stage.router.is_behind()
