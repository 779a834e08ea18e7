"""A broker for other people's clients, on the event loop that `everlog serve` uses."""

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from tests.brokers import RunningBroker, ServedBroker

from everlog.broker import Limits


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """Listens on `broker.port`, and takes packets of up to 4 MiB."""
    with ServedBroker(limits=Limits(packet_bytes=4 << 20)) as running:
        yield running


class Got:
    """Messages as a client's own thread gathers them, and a future for the moment when there are enough."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes, int, bool]] = []
        self._wanted = 0
        self._enough: Future[None] = Future()

    def add(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        """One more message."""
        self.messages.append((topic, payload, qos, bool(retain)))
        if len(self.messages) == self._wanted:
            self._enough.set_result(None)

    def wait(self, count: int, seconds: float = 20) -> list[tuple[str, bytes, int, bool]]:
        """The messages, once there are so many; no more may have come."""
        self._wanted = count
        if len(self.messages) < count:
            self._enough.result(seconds)
        self._enough = Future()
        assert len(self.messages) == count
        return self.messages
