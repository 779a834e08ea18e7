"""Work over all sessions in slices, which lets others run in between."""

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")


async def run_in_slices(steps: Generator[None, None, T], clock: Callable[[], float]) -> tuple[T, float]:
    """Run all steps of a generator; return its result, and how long the steps themselves took."""
    took_s = 0.0
    while True:
        began = clock()
        try:
            next(steps)
        except StopIteration as done:
            return done.value, took_s + clock() - began
        took_s += clock() - began
        await asyncio.sleep(0)
