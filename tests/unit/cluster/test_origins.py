"""Messages are numbered by origin: sent again they are appended once, and nothing behind a gap."""

import pytest

from everlog.cluster.origins import Closed, Gap, Origins

OWN = 9


class Log:
    """Counts what is appended."""

    def __init__(self, end: int = 0) -> None:
        self.end = end

    def appender(self, count: int) -> "Log":
        self.count = count
        return self

    def __call__(self, skipped: int) -> int:
        self.end += self.count - skipped
        return self.end


def send(origins: Origins, log: Log, origin: int, first: int, count: int) -> int:
    return origins.append(origin, first, count, log.appender(count))


def test_repeats_are_skipped_and_the_rest_is_appended() -> None:
    origins, log = Origins(OWN, {}, {}, 0), Log()
    assert send(origins, log, 1, 1, 5) == 5
    assert send(origins, log, 1, 1, 5) == 5
    assert send(origins, log, 1, 4, 4) == 7
    assert log.end == 7


def test_a_gap_is_refused_and_says_where_to_go_on() -> None:
    origins, log = Origins(OWN, {1: 3}, {}, 0), Log()
    with pytest.raises(Gap) as raised:
        send(origins, log, 1, 5, 1)
    assert raised.value.last == 3
    with pytest.raises(Gap):
        send(origins, log, 2, 2, 1)  # a new one begins at 1
    assert log.end == 0


def test_rows_that_split_runs_have_the_numbers_of_what_is_in_them() -> None:
    origins, log = Origins(OWN, {1: 10}, {}, 0), Log()
    send(origins, log, 1, 11, 4)  # offsets 0 to 3
    log.end += 2  # two of its own
    send(origins, log, 2, 1, 3)  # 6 to 8
    assert origins.place(3, whole=False) == {1: 13}
    assert origins.place(5, whole=False) == {1: 14, OWN: 1}
    assert origins.place(7, whole=True) == {1: 14, 2: 1, OWN: 2}
    assert origins.place(9, whole=False) == {2: 3}


def test_a_closed_origin_is_refused_and_keeps_its_final_number() -> None:
    origins, log = Origins(OWN, {1: 3}, {7: 70}, 0), Log()
    send(origins, log, 1, 4, 2)
    assert origins.close(1) == 5
    with pytest.raises(Closed):
        send(origins, log, 1, 6, 1)
    origins.place(2, whole=False)
    origins.forget(1)
    assert origins.place(3, whole=True) == {OWN: 1}
    assert (origins.last(1), origins.last(7), origins.last(8)) == (5, 70, 0)
    assert origins.close(1) == 5
