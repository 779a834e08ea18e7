import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlog.base import UsageError
from everlog.broker import Security
from everlog.broker.auth.acl import Acl
from everlog.broker.auth.acl_rules import parse_rules
from everlog.topics import matches, parse_filter


def acl(text: str) -> Acl:
    return Acl(parse_rules(text, "acl"))


def test_without_rules_everything_is_allowed():
    free = Acl(None)
    assert free.may_publish(None, "c", "a/b")
    assert free.may_subscribe(None, "c", "#")


def test_an_empty_file_allows_nothing():
    closed = acl("# nothing here\n\n")
    assert not closed.may_publish("u", "c", "a")
    assert not closed.may_subscribe("u", "c", "a")


def test_read_and_write_are_separate():
    rules = acl("everyone read in/#\neveryone write out/#\neveryone readwrite both")
    assert rules.may_subscribe(None, "c", "in/+")
    assert not rules.may_publish(None, "c", "in/a")
    assert rules.may_publish(None, "c", "out/a")
    assert not rules.may_subscribe(None, "c", "out/a")
    assert rules.may_publish(None, "c", "both")
    assert rules.may_subscribe(None, "c", "both")


def test_deny_beats_allow_in_any_order():
    for lines in itertools.permutations(["user a readwrite t/#", "user a deny t/secret/#"]):
        rules = acl("\n".join(lines))
        assert rules.may_publish("a", "c", "t/x")
        assert not rules.may_publish("a", "c", "t/secret/x")
        assert not rules.may_publish("a", "c", "t/secret")


def test_deny_of_one_direction_leaves_the_other():
    rules = acl("everyone readwrite t/#\neveryone deny read t/in")
    assert rules.may_publish(None, "c", "t/in")
    assert not rules.may_subscribe(None, "c", "t/in")


def test_deny_read_without_a_filter_behind_it_denies_the_topic_read():
    rules = acl("everyone readwrite #\neveryone deny read")
    assert not rules.may_publish(None, "c", "read")
    assert rules.may_publish(None, "c", "other")


def test_a_subscription_that_overlaps_a_denied_filter_is_refused_whole():
    rules = acl("everyone read sensors/#\neveryone deny sensors/secret")
    assert rules.may_subscribe(None, "c", "sensors/a")
    assert rules.may_subscribe(None, "c", "sensors/+/b")
    for wide in ("sensors/#", "sensors/+", "sensors/secret", "sensors/secret/#", "$share/g/sensors/+"):
        assert not rules.may_subscribe(None, "c", wide), wide


def test_a_subscription_must_be_covered_whole():
    rules = acl("everyone read a/+/c")
    assert rules.may_subscribe(None, "c", "a/b/c")
    assert rules.may_subscribe(None, "c", "a/+/c")
    assert rules.may_subscribe(None, "c", "$share/group/a/+/c")
    for wide in ("a/#", "a/+/#", "+/b/c", "#", "a/+/+", "a/b"):
        assert not rules.may_subscribe(None, "c", wide), wide


def test_an_invalid_filter_is_never_allowed():
    assert not acl("everyone read #").may_subscribe(None, "c", "a/#/b")


def test_wildcards_do_not_open_dollar_topics():
    rules = acl("everyone readwrite #\nuser admin read $SYS/#")
    assert not rules.may_subscribe("bob", "c", "$SYS/#")
    assert not rules.may_publish("bob", "c", "$SYS/x")
    assert rules.may_subscribe("admin", "c", "$SYS/broker/#")


def test_user_client_and_anonymous_choose_who_a_rule_is_for():
    rules = acl("user alice write a\nclient dev-* write b\nuser bob client pump write c\nanonymous write d")
    topics_of = {
        ("alice", "x"): "a",
        ("alice", "dev-1"): "ab",
        (None, "dev-1"): "bd",
        ("bob", "pump"): "c",
        ("bob", "other"): "",
        ("carol", "pump"): "",
        (None, "x"): "d",
    }
    for (user, client), allowed in topics_of.items():
        assert "".join(t for t in "abcd" if rules.may_publish(user, client, t)) == allowed, (user, client)


def test_a_star_matches_every_proven_user_and_no_anonymous_one():
    rules = acl("user * write t")
    assert rules.may_publish("anybody", "c", "t")
    assert not rules.may_publish(None, "c", "t")


def test_names_are_not_regular_expressions():
    rules = acl("user a.c write t\nclient [x]* write s")
    assert not rules.may_publish("abc", "c", "t")
    assert not rules.may_publish("a", "x1", "s")
    assert rules.may_publish("a", "[x]1", "s")


def test_quoted_names_and_filters_may_have_spaces():
    rules = acl('user "Ann \\"the\\" Boss" write "plant 7/#"')
    assert rules.may_publish('Ann "the" Boss', "c", "plant 7/x")


def test_values_are_put_into_the_filter():
    rules = acl("user * readwrite home/%u/#\neveryone write dev/x-%c/%u")
    assert rules.may_publish("ann", "c1", "home/ann/door")
    assert rules.may_subscribe("ann", "c1", "home/ann/#")
    assert not rules.may_subscribe("ann", "c1", "home/+/door")
    assert not rules.may_publish("bob", "c1", "home/ann/door")
    assert rules.may_publish("ann", "c1", "dev/x-c1/ann")


@pytest.mark.parametrize("value", ["+", "#", "a/b", "a/#", "", "x+", "/"])
def test_a_value_that_changes_the_filter_gives_nothing(value):
    rules = acl("everyone readwrite home/%c/#")
    for topic in ("home/a", "home/a/b", f"home/{value}/x", "home"):
        assert not rules.may_publish("u", value, topic)
    assert not rules.may_subscribe("u", value, "home/+/x")
    assert not rules.may_subscribe("u", value, "home/#")


def test_a_value_can_not_reach_dollar_topics():
    rules = acl("user * readwrite %u/#")
    assert not rules.may_subscribe("$SYS", "c", "$SYS/#")
    assert not rules.may_publish("$SYS", "c", "$SYS/x")
    assert rules.may_publish("me", "c", "me/x")


@pytest.mark.parametrize("value", ["+", "#", "a/b", "$x/y", ""])
def test_a_value_that_changes_the_filter_denies_more_not_less(value):
    rules = acl("everyone readwrite #\neveryone readwrite $x/#\neveryone deny box/%c/in")
    assert not rules.may_publish("u", value, "box/a/in")
    assert not rules.may_publish("u", value, "box/a/b/in")
    assert rules.may_publish("u", value, "other")
    first = acl("everyone readwrite #\neveryone readwrite $x/#\neveryone deny %c/in")
    assert not first.may_publish("u", value, "a/in")
    assert not first.may_publish("u", value, "$x/y/in")


def test_an_anonymous_client_has_no_value_for_u():
    rules = acl("everyone write home/%u/x")
    assert not rules.may_publish(None, "c", "home//x")
    assert not rules.may_publish(None, "c", "home/None/x")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("\neveryone raed a", "2:10", "not an action"),
        ("alice read a", "1:1", "not a subject"),
        ("user", "1:5", "user name is missing"),
        ("user bob", "1:9", "read, write, readwrite, replay or deny is missing"),
        ("user bob read", "1:14", "topic filter is missing"),
        ("everyone read a b", "1:17", "more text after"),
        ("everyone read a/#/b", "1:15", "not a topic filter"),
        ("everyone read a/%x/b", "1:17", "neither %u nor %c"),
        ("everyone read a/50%", "1:19", "neither %u nor %c"),
        ('user "bob read a', "1:6", "does not end"),
        ("everyone user bob read a", "1:10", "does not go with"),
        ("user a user b read a", "1:8", "does not go with"),
        ("user a anonymous read a", "1:1", "no user name"),
        ("everyone read $share/g/a", "1:15", "not a topic filter"),
    ],
)
def test_errors_name_line_and_column(text, place, words):
    with pytest.raises(UsageError, match=words) as caught:
        parse_rules(text, "acl")
    assert caught.value.message.startswith(f"acl:{place}: ")
    assert caught.value.hint


def test_a_bad_file_keeps_the_old_rules_on_reload(tmp_path):
    path = tmp_path / "acl"
    path.write_text("everyone write a\n")
    security = Security(acl_file=str(path))
    path.write_text("everyone wrote b\n")
    with pytest.raises(UsageError, match="not an action"):
        security.prepare()()
    assert security.generation == 0
    assert security.acl.may_publish(None, "c", "a")
    path.write_text("everyone write b\n")
    security.prepare()()
    assert security.generation == 1
    assert not security.acl.may_publish(None, "c", "a")
    assert security.acl.may_publish(None, "c", "b")


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="can't be read"):
        Security(acl_file=str(tmp_path / "none"))


def test_receiving_is_asked_for_by_topic():
    rules = acl("user a read t/#\nuser a deny read t/secret\neveryone write w").access("a", "c")
    assert [rules.may_receive(topic) for topic in ("t/x", "t", "t/secret", "w", "$SYS/x")] == [True, True, *[False] * 3]
    assert Acl(None).access("a", "c").may_receive("anything")


levels = st.sampled_from(["a", "b", "", "$x", "+"])
filters = st.builds(
    lambda head, tail: "/".join([*head, *tail]), st.lists(levels, max_size=3), st.sampled_from([[], ["#"]])
)
valid = filters.filter(bool)
lines = st.builds(
    lambda action, flt: f'everyone {action} "{flt}"', st.sampled_from(["read", "deny", "deny read"]), valid
)
topics = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4).map("/".join).filter(bool)


@given(st.lists(lines, max_size=5), valid, topics)
@example(["everyone read #"], "+/#", "$x/a")
def test_whatever_a_granted_filter_matches_may_be_received(rules, text, topic):
    access = acl("\n".join(rules)).access("user", "client")
    if access.may_subscribe(text) and matches(parse_filter(text), topic):
        assert access.may_receive(topic)
