"""Clients of a test's cluster, each a thread: they end with their cluster, also if the test has failed before."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.cluster_load import SessionPublisher
from tests.message_history import MessageHistory
from tests.raw_client import Closed


def broker_that(refuses: BaseException | None) -> Any:
    """Return a broker that runs, as far as its process tells, and takes no client, or one that never gets an answer."""
    made = SimpleNamespace(is_over=False, is_frozen=False, process=SimpleNamespace(poll=lambda: None), asked=0)

    class Client:
        def send(self, packet: object) -> None: ...

        def receive(self) -> object:
            while not made.is_over:
                pass
            raise Closed

        def close(self) -> None: ...

    def client(name: str, **terms: object) -> Client:
        made.asked += 1
        if refuses is not None:
            raise refuses
        made.connacks = {name: SimpleNamespace(session_present=False)}
        return Client()

    made.client = client
    return made


@pytest.mark.parametrize("refuses", [ConnectionRefusedError("no"), Closed("no"), None], ids=str)
def test_a_publisher_ends_with_its_cluster_though_nobody_ends_it(refuses: BaseException | None) -> None:
    broker = broker_that(refuses)
    publisher = SessionPublisher("p", [broker], MessageHistory(), ["t"], 1)
    while not broker.asked:
        pass
    broker.is_over = True
    publisher.join(20)
    assert not publisher.is_alive()
    assert isinstance(publisher.error, ConnectionError)
    with pytest.raises(ConnectionError, match="gone"):
        publisher.end()
