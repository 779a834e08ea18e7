import pytest

from everlog.app.units import format_bytes, format_rate, format_seconds, parse_bytes, parse_rate, parse_seconds
from everlog.base import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("10GB", 10**10),
        ("1.5KiB", 1536),
        ("1_000", 1000),
        ("7B", 7),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "64M", "MiB", "-1", "1.3B", "1e3", "64MiB/s", "1 2"])
def test_bad_sizes_are_refused_with_a_reason(text):
    with pytest.raises(UsageError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("5s", 5), ("10", 10), ("500ms", 0.5), ("250us", 0.00025), ("1h30m", 5400), ("7d", 604_800), ("2w", 1_209_600)],
)
def test_durations(text, value):
    assert parse_seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "5x", "s", "5s!", "-5s", "1h30", "5S"])
def test_bad_durations_are_refused_with_a_hint(text):
    with pytest.raises(UsageError) as caught:
        parse_seconds(text)
    assert caught.value.hint


@pytest.mark.parametrize(("text", "value"), [("2000/s", 2000), ("90/m", 1.5), ("7200/h", 2), ("0.5", 0.5)])
def test_rates(text, value):
    assert parse_rate(text) == value


@pytest.mark.parametrize("text", ["", "2000/d", "5s/s", "/s", "-1/s"])
def test_bad_rates_are_refused(text):
    with pytest.raises(UsageError):
        parse_rate(text)


@pytest.mark.parametrize("value", [0, 1, 1000, 1024, 1025, 64 << 20, 3 << 40])
def test_written_sizes_read_back(value):
    assert parse_bytes(format_bytes(value)) == value


@pytest.mark.parametrize("value", [0, 0.25, 1, 1.5, 90, 3600, 86_400, 604_800, 604_801])
def test_written_durations_read_back(value):
    assert parse_seconds(format_seconds(value)) == pytest.approx(value)


@pytest.mark.parametrize("value", [0.5, 2000, 1e6])
def test_written_rates_read_back(value):
    assert parse_rate(format_rate(value)) == value
