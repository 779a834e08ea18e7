"""Settings that can't be are refused."""

import pytest

from everlog.base import UsageError
from everlog.commitlog import LogSettings


def test_the_defaults_sync_every_commit() -> None:
    assert LogSettings().durability == "fsync"


@pytest.mark.parametrize(
    "change",
    [{"durability": "maybe"}, {"segment_bytes": 0}, {"batch_bytes": -1}, {"pending_bytes": 0}, {"tail_bytes": -1},
     {"cache_bytes": -1}, {"merge_below": -1}, {"merge_records": 0},
     {"preallocate_bytes": -1}],
)  # fmt: skip
def test_a_setting_that_can_not_be_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        LogSettings(**change)  # type: ignore[arg-type]
