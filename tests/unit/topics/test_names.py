import pytest

from everlog.base import PeerError
from everlog.topics import check_topic_name, matches, parse_filter


def reason_of(call, *args, **limits):
    with pytest.raises(PeerError) as caught:
        call(*args, **limits)
    return caught.value.reason, caught.value.clause


@pytest.mark.parametrize("name", ["a", "/", "//", "a//b", "/a", "a/", "$SYS/x", "a b", "é/☃", "$", "$share", "a$b"])
def test_valid_topic_names_pass(name):
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "reason", "clause"),
    [
        ("", 0x90, "MQTT-4.7.3-1"),
        ("a/+", 0x90, "MQTT-4.7.0-1"),
        ("#", 0x90, "MQTT-4.7.0-1"),
        ("a+b", 0x90, "MQTT-4.7.0-1"),
        ("a\0b", 0x81, "MQTT-1.5.4-2"),
        ("a/\ud800", 0x81, "MQTT-1.5.4-1"),
        ("x" * 65_536, 0x90, "MQTT-4.7.3-3"),
        ("é" * 32_768, 0x90, "MQTT-4.7.3-3"),
    ],
)
def test_bad_topic_name_is_refused_with_reason_and_clause(name, reason, clause):
    assert reason_of(check_topic_name, name) == (reason, clause)


def test_topic_name_of_exactly_the_limits_passes():
    check_topic_name("x" * 65_535)
    check_topic_name("/" * 127)
    check_topic_name("éé", max_bytes=4, max_levels=1)


def test_topic_name_over_a_set_limit_is_refused():
    assert reason_of(check_topic_name, "/" * 128) == (0x90, "")
    assert reason_of(check_topic_name, "a/b/c", max_levels=2) == (0x90, "")
    assert reason_of(check_topic_name, "ééx", max_bytes=4) == (0x90, "")


@pytest.mark.parametrize(
    ("text", "reason", "clause"),
    [
        ("", 0x8F, "MQTT-4.7.3-1"),
        ("a\0", 0x81, "MQTT-1.5.4-2"),
        ("a/#/b", 0x8F, "MQTT-4.7.1-1"),
        ("#/", 0x8F, "MQTT-4.7.1-1"),
        ("a#", 0x8F, "MQTT-4.7.1-1"),
        ("a/##", 0x8F, "MQTT-4.7.1-1"),
        ("a+", 0x8F, "MQTT-4.7.1-2"),
        ("a/+b/c", 0x8F, "MQTT-4.7.1-2"),
        ("++", 0x8F, "MQTT-4.7.1-2"),
        ("x" * 65_536, 0x8F, "MQTT-4.7.3-3"),
        ("$share//a", 0x8F, "MQTT-4.8.2-1"),
        ("$share/", 0x8F, "MQTT-4.8.2-1"),
        ("$share/g", 0x8F, "MQTT-4.8.2-2"),
        ("$share/g/", 0x8F, "MQTT-4.8.2-2"),
        ("$share/+/a", 0x8F, "MQTT-4.8.2-2"),
        ("$share/g#/a", 0x8F, "MQTT-4.8.2-2"),
        ("$share/g/a#", 0x8F, "MQTT-4.7.1-1"),
        ("$share/g/a+/b", 0x8F, "MQTT-4.7.1-2"),
    ],
)
def test_bad_filter_is_refused_with_reason_and_clause(text, reason, clause):
    assert reason_of(parse_filter, text) == (reason, clause)


def test_filter_over_a_set_limit_is_refused():
    assert reason_of(parse_filter, "a/b/#", max_levels=2) == (0x8F, "")
    assert reason_of(parse_filter, "abc", max_bytes=2) == (0x8F, "")


def test_share_prefix_does_not_count_as_levels():
    assert parse_filter("$share/g/a/b", max_levels=2).levels == ["a", "b"]
    assert reason_of(parse_filter, "$share/g/a/b", max_levels=1) == (0x8F, "")


def test_shared_filter_is_refused_where_not_allowed():
    assert reason_of(parse_filter, "$share/g/a", allow_shared=False)[0] == 0x9E


def test_wildcard_filter_is_refused_where_not_allowed():
    assert reason_of(parse_filter, "a/+", allow_wildcards=False)[0] == 0xA2
    assert parse_filter("a/b", allow_wildcards=False).is_exact


def test_filter_knows_its_parts():
    shared = parse_filter("$share/g/+/b/#")
    assert (shared.text, shared.pattern, shared.group) == ("$share/g/+/b/#", "+/b/#", "g")
    assert (shared.is_exact, shared.starts_wild, shared.ends_open) == (False, True, True)
    plain = parse_filter("$share")  # [MQTT-4.8.2-1] only $share/ begins a shared subscription
    assert (plain.group, plain.is_exact, plain.starts_wild, plain.ends_open) == (None, True, False, False)


def test_filters_are_equal_when_their_texts_are():
    assert parse_filter("a/+") == parse_filter("a/+")
    assert len({parse_filter("a"), parse_filter("a"), parse_filter("$share/g/a")}) == 2


@pytest.mark.parametrize(
    ("text", "topic", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("#", "a/b", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/x", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("+/#", "$SYS", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("$share/g/#", "$SYS/x", False),
        ("$share/g/a/+", "a/b", True),
        ("a/+/#", "a", False),
        ("a/+/#", "a/b", True),
        ("+/#", "a", True),
        ("a/#", "a//", True),
        ("A", "a", False),
        ("\u00e9", "e\u0301", False),
        ("a/b", "a/b/c", False),
    ],
)
def test_matches_follows_the_specification(text, topic, expected):
    assert matches(parse_filter(text), topic) is expected
