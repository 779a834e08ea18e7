"""Brokers and clients for the conformance tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.memory_log import MemoryLog
from tests.stages import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A broker that keeps what durable sessions subscribe to, in one shard."""
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture
def stages() -> Iterator[Callable[..., Stage]]:
    """Brokers with settings of the test's own."""
    with ExitStack() as stack:

        def make(log: MemoryLog | None = None, **settings: Any) -> Stage:
            stage = Stage(log, **settings)
            stack.callback(stage.close)
            return stage

        yield make


@pytest.fixture(params=[4, 5], ids=["v3.1.1", "v5"])
def version(request: pytest.FixtureRequest) -> int:
    """Both versions of the protocol."""
    return int(request.param)
