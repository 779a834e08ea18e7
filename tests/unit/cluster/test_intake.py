"""What is committed is offered at once, unless much was just now: then it leaves together with what follows."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cluster_shards import row_at

from everlog.cluster import intake as intake_module
from everlog.cluster.intake import Intake
from everlog.cluster.ports import LinkKind


class Links:
    """Links that note what is offered, and when."""

    def __init__(self) -> None:
        self.living = {2, 3}
        self.offered: list[tuple[float, int]] = []
        self._is_new = asyncio.Event()

    def offer(self, kind: LinkKind, number: int, body: bytes, rest: bytes = b"") -> int:
        assert kind is LinkKind.OFFER
        self.offered.append((asyncio.get_running_loop().time(), number))
        self._is_new.set()
        return 0

    async def until(self, count: int) -> None:
        """Return when so many were offered."""
        while len(self.offered) < count:
            self._is_new.clear()
            await self._is_new.wait()

    def hear(self, kind: LinkKind, call: Any) -> None: ...
    def rest(self, call: Any) -> None: ...


def intake_of(links: Links) -> Intake:
    log: Any = SimpleNamespace(cluster_shards=[SimpleNamespace(on_batches=None)], take_offered=lambda: None)
    router: Any = None
    return Intake(log, links, router, lambda *_: None)  # type: ignore[arg-type]


def commit(intake: Intake, base: int, size: int) -> None:
    """Have a batch of about so many bytes committed."""
    intake._wrote(0, [row_at(base, 1, bytes(size))])
    intake.committed()


async def test_little_is_offered_at_once() -> None:
    links = Links()
    intake = intake_of(links)
    for base in range(10):
        commit(intake, base, 100)
        assert links.offered[-1][1] == base
        await asyncio.sleep(0.002)  # far less than the pause after much


async def test_what_follows_much_leaves_together_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    pause_s = 0.3
    monkeypatch.setattr(intake_module, "GATHER_S", pause_s)
    links = Links()
    intake = intake_of(links)
    began = asyncio.get_running_loop().time()
    commit(intake, 0, int(intake_module.UNGATHERED_BYTES_S * pause_s))
    assert [number for _, number in links.offered] == [0], "the first one waits for nothing"
    for base in (1, 2, 3):
        commit(intake, base, 100)
    assert len(links.offered) == 1
    await links.until(4)
    assert [number for _, number in links.offered] == [0, 1, 2, 3]
    assert links.offered[1][0] >= began + pause_s
    assert links.offered[3][0] == pytest.approx(links.offered[1][0], abs=pause_s), "together"
