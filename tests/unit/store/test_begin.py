"""Where in history to begin, as it is written."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.base import UsageError
from everlog.store import Begin, BeginKind, locate, parse_begin, show_positions

NOW = 1_800_000_000_000_000
NOON = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("text", "ago_us"),
    [
        ("-90s", 90_000_000),
        ("-5m", 300_000_000),
        ("-24h", 86_400_000_000),
        ("-7d", 7 * 86_400_000_000),
        ("-2w", 14 * 86_400_000_000),
        ("-1h30m", 5_400_000_000),
        ("-1.5h", 5_400_000_000),
        ("-0.25s", 250_000),
        ("-0s", 0),
        ("-999999999999w", NOW),  # before there was time
    ],
)
def test_so_long_ago(text, ago_us):
    assert parse_begin(text, NOW) == Begin(BeginKind.TIME, NOW - ago_us)


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31t12:00:00z", NOON),
        ("2026-01-31 12:00:00Z", NOON),
        ("2026-01-31T14:30:00+02:30", NOON),
        ("2026-01-31T09:00:00-03:00", NOON),
        ("2026-01-31T12:00:00.5Z", NOON + 500_000),
        ("2026-01-31T12:00:00.000001Z", NOON + 1),
        ("2026-01-31T12:00:00.0000019Z", NOON + 1),
        ("2026-01-31T11:59:60Z", NOON),
        ("2026-01-31T12:00Z", NOON),
        ("2026-01-31T12:00:00", NOON),
        ("2026-01-31 12:00:00.000001", NOON + 1),
        ("2026-01-31", NOON - 12 * 3_600_000_000),
        ("1969-12-31T23:59:59Z", 0),
        ("0001-01-01T00:00:00+01:00", 0),
    ],
)
def test_times(text, time_us):
    assert parse_begin(text, NOW) == Begin(BeginKind.TIME, time_us)


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9999, 12, 31)))
def test_every_time_is_read_as_it_is_written(time):
    microseconds = (time - datetime(1970, 1, 1)) // (datetime(1, 1, 1, 0, 0, 0, 1) - datetime(1, 1, 1))
    assert parse_begin(time.isoformat(timespec="microseconds") + "Z", NOW).time_us == microseconds


def test_words_and_positions():
    assert parse_begin("earliest", NOW) == Begin(BeginKind.EARLIEST)
    assert parse_begin("latest", NOW) == Begin(BeginKind.LATEST)
    assert parse_begin("0:1234", NOW) == Begin(BeginKind.POSITION, offsets=((0, 1234),))
    assert parse_begin("3:99,0:0", NOW) == Begin(BeginKind.POSITION, offsets=((0, 0), (3, 99)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "Earliest",
        "24h",
        "-24",
        "-h",
        "-1y",
        "+1h",
        "--1h",
        "-1h ",
        "2026-01-31T",
        "2026-01-31T12Z",
        "2026-01-31Z",
        "2026-02-30T12:00:00Z",
        "2026-01-31T25:00:00Z",
        "2026-01-31T12:00:61Z",
        "2026-01-31T12:00:00+24:00",
        "2026-01-31T12:00:00+02:60",
        "0001-01-01T00:00:00.Z",
        "1234",
        "0:",
        ":1",
        "0:1,",
        "0:1,0:2",
        "0:-1",
        "254:0",
        "0:99999999999999999",
        "0:١",
    ],
)
def test_what_is_no_place_in_history_is_refused_with_a_hint(text):
    with pytest.raises(UsageError) as refused:
        parse_begin(text, NOW)
    assert refused.value.hint


def test_each_kind_is_found_in_each_shard():
    starts, ends = (10, 0), (100, 50)

    def at(time_us):
        return (20, time_us)

    def found(text):
        return locate(parse_begin(text, NOW), starts, ends, at)

    assert found("earliest") == starts
    assert found("latest") == ends
    assert found("1970-01-01T00:00:00.000030Z") == (20, 30)
    assert found("1970-01-01T00:01:00Z") == (20, 50)  # behind the end is the end
    assert found("1:7") == (10, 7)  # a shard that is not named begins at its earliest
    assert found("0:5,1:51") == (5, 50)  # below the start it is for the caller to say what is gone
    with pytest.raises(UsageError, match="no shard 2"):
        found("2:0")


@given(st.lists(st.integers(0, (1 << 56) - 1), min_size=1, max_size=254))
def test_positions_are_read_as_they_are_shown(offsets):
    assert parse_begin(show_positions(offsets), NOW).offsets == tuple(enumerate(offsets))
