"""What is kept, as one byte for each topic and QoS."""

from tests.parts import SPILLED, make_kept_topics

from everlog.base import NOT_KEPT, MessageColumns, PublishRun, TopicTable


def made(shards=4):
    table = TopicTable(0)
    return table, make_kept_topics(table, lambda name: len(name) % shards)


def run_of(table, *topics):
    """A run with a message of each of these topics."""
    columns = MessageColumns(max(1, len(topics)))
    numbers = memoryview(columns.topics).cast("I")
    for row, topic in enumerate(topics):
        numbers[row] = table.intern(topic.encode())
    return PublishRun(columns, 0, len(topics), 0)


def routes(kept, table, topic):
    """The shards that keep a topic's messages, by QoS."""
    if not kept.extend(run_of(table, topic)):
        return [NOT_KEPT] * 3
    number = table.lookup(topic.encode())
    return list(kept.routes[4 * number : 4 * number + 3])


def test_a_kept_topic_has_its_shard_and_others_have_none():
    table, kept = made()
    kept.add("a/+")
    for name in (b"a/b", b"a/bc", b"b"):
        table.intern(name)
    assert kept.extend()
    assert routes(kept, table, "a/b") == [3] * 3
    assert routes(kept, table, "a/bc") == [0] * 3
    assert routes(kept, table, "b") == [NOT_KEPT] * 3


def test_topics_known_before_the_first_filter_are_looked_at_again():
    table, kept = made()
    table.intern(b"a")
    assert not kept.extend()
    kept.add("a")
    assert kept.extend()
    assert routes(kept, table, "a") == [1] * 3
    kept.remove("a")
    table.intern(b"b")
    assert not kept.extend()
    assert routes(kept, table, "a") == [NOT_KEPT] * 3
    kept.add("#")
    kept.extend()
    assert routes(kept, table, "b") == [1] * 3


def test_a_lowest_qos_lets_lower_ones_pass_by():
    table, kept = made()
    kept.configure([("a", 1), ("+", 2)])
    table.intern(b"a")
    table.intern(b"b")
    kept.extend()
    assert routes(kept, table, "a") == [NOT_KEPT, 1, 1]
    assert routes(kept, table, "b") == [NOT_KEPT, NOT_KEPT, 1]
    kept.add("#")
    assert routes(kept, table, "a") == [1, 1, 1]
    kept.remove("#")
    assert routes(kept, table, "a") == [NOT_KEPT, 1, 1]


def test_what_is_never_kept_is_kept_for_durable_sessions_alone():
    table, kept = made(shards=1)
    kept.configure([("#", 0), ("response/now", 0)], ["response/#", "p/+"])
    names = ("a", "response/1", "response/now", "p/1", "p/1/x")
    for name in names:
        table.intern(name.encode())

    def found():
        return {name for name in names if routes(kept, table, name) == [0] * 3}

    assert found() == {"a", "p/1/x"}
    kept.add("$share/g/response/+")
    kept.add("#")
    assert found() == {*names}
    kept.remove("#")
    assert found() == {"a", "p/1/x", "response/1", "response/now"}
    kept.remove("response/+")
    assert found() == {"a", "p/1/x"}
    assert kept.filters() == [("#", 0), ("response/now", 0)]


def test_nothing_is_looked_up_when_there_is_nothing_that_never_could_limit():
    table, kept = made()
    kept.configure([], ["response/#"])
    table.intern(b"response/1")
    assert not kept.extend()


def test_a_filter_is_kept_as_long_as_anyone_asks_for_it():
    table, kept = made()
    table.intern(b"a")
    for text in ("a", "$share/g/a", "a"):
        kept.add(text)
    assert kept.filters() == [("a", 0)]
    kept.remove("a")
    kept.remove("$share/g/a")
    kept.extend()
    assert routes(kept, table, "a") == [1] * 3
    kept.remove("a")
    kept.remove("a")
    assert kept.filters() == []
    assert routes(kept, table, "a") == [NOT_KEPT] * 3


def test_a_change_finds_all_topics_that_were_looked_up():
    table, kept = made()
    kept.add("x")
    for start in range(0, 60, 10):
        kept.extend(run_of(table, *(f"t/{number}" for number in range(start, start + 10))))
    kept.add("t/#")
    assert all(routes(kept, table, f"t/{number}")[0] != NOT_KEPT for number in range(60))
    kept.remove("t/#")
    assert all(routes(kept, table, f"t/{number}")[0] == NOT_KEPT for number in range(60))


def test_a_table_that_begins_anew_is_followed():
    table, kept = made()
    kept.add("a")
    table.intern(b"b")
    table.intern(b"a")
    kept.extend()
    table.reset()
    table.intern(b"a")
    kept.extend()
    assert len(kept.routes) == 4
    assert routes(kept, table, "a") == [1] * 3


def test_a_topic_is_looked_up_when_it_comes_and_a_change_concerns_it():
    table, kept = made()
    names = [f"a/b/{number}" for number in range(500)]
    run = run_of(table, *names)
    assert not kept.extend(run)
    for text in ("a/#", "a/+/#", "+/b/#", "+/+/#", "a/b/+", "+/b/+", "+/+/+", "#"):
        kept.add(text)
    assert kept.looked_up == 0
    kept.extend(run)
    kept.extend(run)
    assert kept.looked_up == 500
    assert kept.remove("#") == 500
    kept.extend(run_of(table, *names[:10]))
    assert kept.looked_up == 510, "only those that come"
    kept.add("c/#")
    kept.add("a/b/7", 1)
    kept.extend(run)
    assert kept.looked_up == 1000, "kept from QoS 0 on already"


def test_a_spilled_filter_keeps_what_must_not_be_dropped():
    table, kept = made()
    kept.add("a", SPILLED)
    assert routes(kept, table, "a") == [NOT_KEPT, 1, 1]
    assert kept.filters() == [("a", SPILLED)]
    kept.add("+", 2)
    assert routes(kept, table, "a") == [NOT_KEPT, 1, 1]
    kept.remove("a", SPILLED)
    assert routes(kept, table, "a") == [NOT_KEPT, NOT_KEPT, 1]
    kept.add("a", SPILLED)
    kept.add("#")
    assert routes(kept, table, "a") == [1, 1, 1]
    kept.remove("a", SPILLED)
    kept.remove("#")
    assert routes(kept, table, "a") == [NOT_KEPT, NOT_KEPT, 1]


def test_it_says_that_a_topic_is_kept_from_now_on():
    table, kept = made()
    kept.add("a", SPILLED)
    routes(kept, table, "b")
    assert not kept.began
    routes(kept, table, "a")
    assert kept.began
    kept.began = False
    kept.add("#")
    routes(kept, table, "a")
    assert kept.began, "from a lower QoS on"
    kept.began = False
    kept.remove("#")
    routes(kept, table, "a")
    assert not kept.began


def test_spills_and_releases_of_overlapping_filters_look_at_few_topics():
    table, kept = made()
    names = [f"a/b/{number}" for number in range(2000)]
    run = run_of(table, *names)
    kept.add("a/#", SPILLED)
    kept.extend(run)
    before = kept.looked_up
    for turn in range(100):
        kept.add("a/b/#", SPILLED)
        kept.add(f"+/+/{turn}", SPILLED)
        assert kept.remove("a/b/#", SPILLED) in (0, 2000)
        kept.add("a/b/#", SPILLED)
        assert kept.remove(f"+/+/{turn}", SPILLED) <= 1
        kept.remove("a/b/#", SPILLED)
    kept.extend(run)
    assert kept.looked_up - before <= 2000, "once for all of it"
    kept.add("#")
    kept.extend(run)
    before = kept.looked_up
    for _ in range(100):
        kept.add("+/#", SPILLED)
        kept.extend(run)
        assert kept.remove("+/#", SPILLED) == 0
        kept.extend(run)
    assert kept.looked_up == before, "what settings keep is not touched by spills"


def marks(kept, table, topic):
    """By QoS, whether a topic's messages are kept for spills alone ("spill"), for durable sessions alone, or not."""
    kept.extend(run_of(table, topic))
    byte = kept.routes[4 * table.lookup(topic.encode()) + 3]
    return ["spill" if byte >> qos & 1 else "sessions" if byte >> qos + 3 & 1 else "" for qos in range(3)]


def test_what_only_durable_sessions_keep_is_marked():
    table, kept = made()
    kept.configure([("set/#", 1)], ["set/never"], ["aged/#"])
    assert marks(kept, table, "a") == ["", "", ""], "not kept at all"
    kept.add("a")
    kept.add("set/#")
    kept.add("aged/#")
    assert marks(kept, table, "a") == ["sessions"] * 3
    assert marks(kept, table, "set/a") == ["sessions", "", ""], "the settings keep QoS 1 and 2"
    assert marks(kept, table, "set/never") == ["sessions"] * 3
    assert marks(kept, table, "aged/a") == ["", "", ""], "the settings say how long"
    kept.add("b", SPILLED)
    assert marks(kept, table, "b") == ["", "spill", "spill"]
    kept.add("b")
    assert marks(kept, table, "b") == ["sessions"] * 3
    kept.remove("b")
    assert marks(kept, table, "b") == ["", "spill", "spill"]
    kept.remove("a")
    assert marks(kept, table, "a") == ["", "", ""]
