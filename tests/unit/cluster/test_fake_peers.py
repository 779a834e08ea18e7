"""Links of tests behave as `Peers` says."""

import asyncio

import pytest
from tests.fake_peers import FakeLinks

from everlog.base import Unavailable
from everlog.cluster import LinkKind

KIND = LinkKind.RELEASE_SESSION


async def test_questions_are_answered_and_what_is_told_is_heard() -> None:
    links = FakeLinks()
    one, other = links.join(1), links.join(2)
    heard = []

    async def answer(asker: int, body: bytes) -> bytes:
        heard.append(asker)
        return body.upper()

    other.answer(KIND, answer)
    assert one.living == {2}
    assert await one.ask(2, KIND, b"a") == b"A"
    one.tell(2, KIND, b"b")
    while heard != [1, 1]:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_a_cut_link_loses_the_question_and_its_answer() -> None:
    links = FakeLinks()
    one, other = links.join(1), links.join(2)
    other.is_asleep = True
    asked = asyncio.ensure_future(one.ask(2, KIND, b""))
    await asyncio.sleep(0)
    links.cut(1, 2)
    with pytest.raises(Unavailable):
        await asked
    with pytest.raises(Unavailable):
        await one.ask(2, KIND, b"")
    assert not one.living
    links.mend(1, 2)
    assert one.living == {2}
    links.leave(2)
    assert not one.living


async def test_an_error_of_who_answers_is_unavailable_to_who_asks() -> None:
    links = FakeLinks()
    one, _ = links.join(1), links.join(2)
    with pytest.raises(Unavailable):
        await one.ask(2, KIND, b"")
