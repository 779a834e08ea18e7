"""A broker for other people's clients, on the event loop that `everlog serve` uses."""

from collections.abc import Iterator

import pytest
from tests.brokers import RunningBroker, ServedBroker

from everlog.broker import Limits


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """Listens on `broker.port`, and takes packets of up to 4 MiB."""
    with ServedBroker(limits=Limits(packet_bytes=4 << 20)) as running:
        yield running
