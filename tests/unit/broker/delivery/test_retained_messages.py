"""The retained messages in memory."""

from random import Random

import pytest
from tests.memory_log import MemoryLog

from everlog.base import RETAINED, MessageColumns, Records, TopicTable
from everlog.broker.delivery.retained_messages import RetainedMessages
from everlog.broker.delivery.retained_reader import RetainedWalk
from everlog.mqtt import Decoder, Properties, Publish, encode
from everlog.sessions import RetainedRow, Snapshot
from everlog.topics import matches, parse_filter

MINUTE_US = 60_000_000


class Stage:
    def __init__(self, max_messages=10, max_bytes=1 << 20):
        self.table = TopicTable(0)
        self.retained = RetainedMessages(max_messages, max_bytes)
        self.retained.columns.stores = True
        self.decoder = Decoder(MessageColumns(16), self.table, version=5, max_aliases=100)
        self.now_us = 1

    def take(self, topic, payload, publisher=None, **options):
        (run,) = self.decoder.feed(encode(Publish(topic, payload, retain=True, **options), 5))
        return not self.retained.take_run(run, self.now_us, self.table, publisher)

    def take_changes(self):
        return [(name.decode(), message) for name, message in self.retained.columns.take_changes(1 << 30)]

    def batches(self, text, at=0, rows=512, looks=1 << 20, **options):
        walk = RetainedWalk(text.encode(), at, self.retained.columns.next_number)
        for name, value in options.items():
            setattr(walk, name, value)
        return self.walked(walk, rows, looks)

    def walked(self, walk, rows=512, looks=1 << 20):
        while not walk.is_over:
            records = self.retained.columns.reader.collect(walk, rows, 1 << 20, looks)
            if records is not None:
                assert records.verify()
                yield records

    def found(self, text, **options):
        return dict(pairs(self.batches(text, **options)))


def pairs(batches):
    for records in batches:
        for _, _, topic, _, _, payload in records.rows():
            yield records.table.name(topic).decode(), payload


def test_the_last_message_of_a_topic_stays():
    stage = Stage()
    assert stage.take("a", b"1")
    assert stage.take("a", b"2")
    assert stage.take("a/b", b"3")
    assert stage.found("#") == {"a": b"2", "a/b": b"3"}
    assert stage.found("a/+") == {"a/b": b"3"}
    assert stage.found("a/b") == {"a/b": b"3"}
    assert len(stage.retained) == 2


def test_an_empty_message_removes_it():
    stage = Stage()
    stage.take("a", b"1")
    assert stage.take("a", b"")
    assert stage.take("never", b"")
    assert stage.found("#") == stage.found("a") == {}
    assert len(stage.retained) == 0


def test_a_topic_that_comes_back_is_found_again_under_another_number():
    stage = Stage()
    for number in range(5):
        stage.take("a", b"%d" % number)
        assert stage.found("a") == stage.found("+") == {"a": b"%d" % number}
        assert stage.retained.find(RETAINED | number).row(0)[5] == b"%d" % number
        stage.take("a", b"")
        assert stage.found("a") == stage.found("+") == {}
        assert stage.retained.find(RETAINED | number) is None


def test_a_message_is_as_it_was_published_without_its_alias():
    stage = Stage(max_messages=100)
    pairs_of_it = (("k", "v"), ("k", "w"))
    for number in range(60):
        stage.now_us = number
        properties = Properties(
            content_type="t" * number, topic_alias=number + 1 if number % 2 else None, user_properties=pairs_of_it
        )
        stage.take(
            f"t/{number}", b"%d" % number, qos=number % 3, packet_id=1 if number % 3 else 0, properties=properties
        )
    rows = [row for records in stage.batches("t/+", rows=7) for row in records.rows()]
    assert [row[0] for row in rows] == [RETAINED | number for number in range(60)]
    for number, (offset, time_us, _, flags, properties, payload) in enumerate(rows):
        assert (time_us, payload, flags & 0x07) == (number, b"%d" % number, 1 | number % 3 << 1)
        assert properties.count(b"t") >= number
        assert properties.endswith(b"\x26\x00\x01k\x00\x01v\x26\x00\x01k\x00\x01w")
        assert b"\x23\x00" not in properties
        assert stage.retained.find(offset).row(0)[4:] == (properties, payload)


def test_messages_of_a_client_are_left_out_for_who_wants_none_of_its_own():
    stage = Stage()
    stage.take("a", b"1", "me")
    stage.take("b", b"1", "you")
    stage.take("c", b"1")
    assert stage.found("#", not_from=b"me") == {"b": b"1", "c": b"1"}
    stage.take("a", b"2", "you")
    assert stage.found("#", not_from=b"me") == {"a": b"2", "b": b"1", "c": b"1"}


def test_messages_of_qos_0_are_left_out_on_demand():
    stage = Stage()
    for qos in range(3):
        stage.take(f"q/{qos}", b"1", qos=qos, packet_id=1 if qos else 0)
    assert set(stage.found("#", min_qos=1)) == {"q/1", "q/2"}


def test_times_far_apart_are_in_batches_of_their_own_where_they_matter():
    stage = Stage()
    for number in range(6):
        stage.now_us = 600 * MINUTE_US if number % 2 else (1 + number) * MINUTE_US
        stage.take(f"t/{number}", b"1")
    exact = list(stage.batches("#", with_times=True))
    assert [row[1] // MINUTE_US for records in exact for row in records.rows()] == [1, 600, 3, 600, 5, 600]
    assert [records.count for records in exact] == [1] * 6
    assert [records.count for records in stage.batches("#")] == [6]
    stage.take("t/6", b"1", properties=Properties(message_expiry_interval=5))
    *_, last = batches = list(stage.batches("#"))
    assert [records.count for records in batches] == [6, 1]
    assert last.row(0)[1] == stage.now_us


def test_more_messages_than_allowed_are_refused_and_counted():
    stage = Stage(max_messages=2)
    assert stage.take("a", b"1")
    assert stage.take("b", b"1")
    assert not stage.take("c", b"1")
    assert stage.take("a", b"2")
    assert stage.retained.refused == 1
    assert stage.found("#") == {"a": b"2", "b": b"1"}
    stage.take("a", b"")
    assert stage.take("c", b"1")


def test_more_bytes_than_allowed_are_refused_and_the_old_message_stays():
    stage = Stage()
    assert stage.take("a", bytes(500))
    stage.retained.max_bytes = stage.retained.size_bytes + 1000
    assert not stage.take("b", bytes(1_500))
    assert not stage.take("a", bytes(2_500))
    assert stage.found("#") == {"a": bytes(500)}
    assert stage.take("a", bytes(400))
    stage.retained.max_bytes = 0
    assert stage.take("a", bytes(300))
    assert not stage.take("a", bytes(301))
    assert stage.found("#") == {"a": bytes(300)}


def test_memory_is_counted_and_given_back():
    stage = Stage(max_messages=10_000, max_bytes=1 << 30)
    empty = stage.retained.size_bytes
    for number in range(3000):
        stage.take(f"some/topic/{number}", bytes(1000))
    full = stage.retained.size_bytes
    assert 3_000_000 < full - empty < 3_000_000 + 3000 * 400
    for number in range(3000):
        stage.take(f"some/topic/{number}", bytes(10))
    assert stage.retained.size_bytes - empty < 3000 * 400 + (1 << 20)  # of the chunk that is filled next
    for number in range(3000):
        stage.take(f"some/topic/{number}", b"")
        stage.take_changes()
    for number in range(1000):  # the index is made anew little by little
        stage.take("a", b"%d" % number)
        stage.take_changes()
    assert stage.retained.size_bytes - empty < 200_000 + (1 << 20)
    assert stage.found("#") == {"a": b"999"}


@pytest.mark.parametrize("change", [b"", b"new", b"longer than it was"])
def test_what_changes_while_they_are_gone_through_is_seen(change):
    stage = Stage()
    for topic in "abc":
        stage.take(topic, b"old")
    going = pairs(stage.batches("#", rows=1))
    assert next(going) == ("a", b"old")
    stage.take("b", change)
    assert dict(going) == ({"b": change, "c": b"old"} if change else {"c": b"old"})


def test_a_walk_that_goes_back_finds_the_same_again():
    stage = Stage(max_messages=100)
    for number in range(40):
        stage.take(f"t/{number % 7}/{number}", b"1")
    walk = RetainedWalk(b"t/3/+", 0, 100)
    first = list(pairs(stage.walked(walk, 2)))
    walk.go_back(10)
    assert list(pairs(stage.walked(walk, 2))) == first[1:]
    walk.go_back(17)
    assert list(pairs(stage.walked(walk, 3))) == [(f"t/3/{number}", b"1") for number in (17, 24, 31, 38)]


def test_looks_are_few_at_a_time():
    stage = Stage(max_messages=1000)
    for number in range(500):
        stage.take(f"a/{number}", b"1")
    stage.take("b/7", b"1")
    walk = RetainedWalk(b"+/+", 0, 1000)
    walk.not_from = b"x"
    looks = 0
    while not walk.is_over:
        records = stage.retained.columns.reader.collect(walk, 512, 1 << 20, 10)
        assert records is None or records.count <= 10
        looks += 1
    assert looks >= 50


class Model:
    """What the columns should have: payloads and numbers by topic, and what was stored of it."""

    def __init__(self):
        self.messages = {}
        self.numbers = {}
        self.next = 0
        self.stored = {}

    def take(self, topic, payload):
        if not payload:
            self.messages.pop(topic, None)
            self.numbers.pop(topic, None)
            return
        if topic not in self.messages:
            self.numbers[topic] = self.next
            self.next += 1
        self.messages[topic] = payload

    def store(self, topic, message):
        if message is None:
            self.stored.pop(topic, None)
        else:
            self.stored[topic] = message


@pytest.mark.parametrize("seed", range(4))
def test_they_are_as_a_plain_dictionary_would_have_them(seed):
    random = Random(seed)
    stage, model = Stage(100_000, 1 << 30), Model()
    tokens = ["a", "b", "", "c" * 40, "$x", "d"]
    filters = ["#", "+", "+/+", "a/#", "a/+", "+/b/#", "$x/#", "a/b/a", "+/b", "/#", "+/+/+/#", "b/+/d"]
    goal = [0.9, 0.1]
    for step in range(2500):
        if step % 700 == 0:
            goal.reverse()  # grow, then shrink, so that everything is made anew a few times
        levels = [random.choice([*tokens, str(random.randrange(40))]) for _ in range(random.randrange(1, 5))]
        topic = "/".join(levels) or "/"
        payload = b"" if random.random() < goal[0] else random.randbytes(random.choice([1, 9, 9, 300, 5000]))
        if not payload and model.messages and random.random() < 0.9:
            topic = random.choice(list(model.messages))
        stage.take(topic, payload)
        model.take(topic, payload)
        if random.random() < 0.2:
            for name, message in stage.take_changes():
                model.store(name, message)
        if step % 100 == 0:
            check(stage, model, random.choice(filters), random)
    for text in filters:
        check(stage, model, text, random)
    for name, message in stage.take_changes():
        model.store(name, message)
    restored = Stage(1, 1)
    rows = [RetainedRow(name, message) for name, message in sorted(model.stored.items())]
    assert restored.retained.saving.restore(Snapshot((), 0, (), rows), MemoryLog(1), 0).rows == {}
    gone = {topic for topic in model.messages if topic.startswith("$")}
    model.messages = {topic: payload for topic, payload in model.messages.items() if topic not in gone}
    for text in filters:
        check(restored, model, text, random)


def check(stage, model, text, random):
    assert len(stage.retained) == len(model.messages)
    flt = parse_filter(text)
    wanted = [topic for topic in model.messages if matches(flt, topic)]
    at = random.choice([0, 0, random.randrange(model.next + 1)])
    expected = [
        (topic, model.messages[topic])
        for topic in sorted(wanted, key=model.numbers.__getitem__)
        if model.numbers[topic] >= at
    ]
    assert list(pairs(stage.batches(text, at=at, rows=random.choice([1, 3, 512])))) == expected
    for topic in random.sample(wanted, min(3, len(wanted))):
        records = stage.retained.find(RETAINED | model.numbers[topic])
        assert isinstance(records, Records)
        assert records.row(0)[5] == model.messages[topic]
        assert records.base_offset == RETAINED | model.numbers[topic]


def test_whether_a_subscription_can_get_something_is_known_where_a_level_is_no_topics():
    stage = Stage()
    assert not stage.retained.may_have(parse_filter("#"))
    stage.take("a/b", b"x")
    assert stage.retained.may_have(parse_filter("a/b"))
    assert stage.retained.may_have(parse_filter("#"))
    assert stage.retained.may_have(parse_filter("a/#"))
    assert stage.retained.may_have(parse_filter("+/b"))
    assert not stage.retained.may_have(parse_filter("other/#"))
    assert not stage.retained.may_have(parse_filter("a/+/c"))
    assert not stage.retained.may_have(parse_filter("a/c"))


def test_a_message_of_the_same_size_takes_the_place_of_the_one_before():
    stage = Stage(max_messages=100)
    short, long = Properties(content_type="c"), Properties(content_type="ccc")
    stage.take("t/a", b"12345", "one", qos=1, packet_id=1, properties=short)
    stage.take_changes()
    before = stage.retained.size_bytes
    for payload, properties in ((b"54321", short), (b"333", long), (b"22222", short), (b"7777777", Properties())):
        stage.now_us += 1
        stage.take("t/a", payload, "two", qos=0, dup=False, properties=properties)
        (records,) = stage.batches("t/+")
        ((offset, time_us, _, flags, stored, found),) = records.rows()
        assert (offset, time_us, found, flags & 0x07) == (RETAINED, stage.now_us, payload, 1)
        assert stored.count(b"c") == len(properties.content_type or "")
        assert [name for name, _ in stage.take_changes()] == ["t/a"]
    assert stage.retained.size_bytes == before
    assert not list(stage.batches("t/+", not_from=b"two"))
    assert list(stage.batches("t/+", not_from=b"one"))
