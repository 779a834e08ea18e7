"""Whether a feed's event is the next one."""

import pytest

from everlog.client import Chain
from everlog.streams import FeedEvent


@pytest.mark.parametrize(
    ("epoch", "position", "previous", "follows"),
    [
        (2, 11, 10, True),  # the next
        (2, 30, 10, True),  # also the next: other streams have the positions between
        (2, 10, 7, None),  # known
        (2, 9, 7, None),
        (1, 50, 10, None),  # of an owner that was replaced
        (2, 30, 11, False),  # one is missing
        (2, 30, -1, False),  # the stream was made anew
        (3, 11, 10, False),  # an epoch is not crossed without asking
    ],
)
def test_an_event_follows_only_what_it_names(epoch: int, position: int, previous: int, follows: bool | None) -> None:
    chain = Chain((2, 10))
    assert chain.follows(FeedEvent("s", epoch, position, previous, [])) is follows
    assert chain.at == ((2, position) if follows else (2, 10))
