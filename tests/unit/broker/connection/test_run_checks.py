"""What is asked of whole runs and of new names at once."""

import pytest

from everlog.base import table_of
from everlog.broker.connection.run_checks import any_begins

NAMES = table_of([b"everlog/p/a", b"", b"everlog/q", b"$x/p", b"everlog/p/"])


@pytest.mark.parametrize(
    ("first", "prefix", "expected"),
    [(0, b"everlog/p/", True), (1, b"everlog/p/", True), (5, b"everlog/p/", False), (1, b"everlog/p/a", False)],
)
def test_a_prefix_is_looked_for_in_the_names_from_an_id_on(first: int, prefix: bytes, expected: bool) -> None:
    assert any_begins(NAMES, first, prefix) is expected
