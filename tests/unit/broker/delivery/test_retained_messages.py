"""The retained messages in memory."""

import pytest

from everlog.base import MessageColumns, TopicTable
from everlog.broker.delivery.retained_messages import RetainedMessages
from everlog.mqtt import Decoder, Publish, encode
from everlog.topics import parse_filter


class Stage:
    def __init__(self, max_messages=10, max_bytes=1 << 20):
        self.table = TopicTable(0)
        self.retained = RetainedMessages(max_messages, max_bytes)
        self.decoder = Decoder(MessageColumns(16), self.table, version=4)

    def take(self, topic, payload):
        (run,) = self.decoder.feed(encode(Publish(topic, payload, retain=True), 4))
        return not self.retained.take_run(run, 1, self.table)

    def found(self, text):
        return {one.topic: one.records.row(0)[5] for one in self.retained.matching(parse_filter(text))}


def test_the_last_message_of_a_topic_stays():
    stage = Stage()
    assert stage.take("a", b"1")
    assert stage.take("a", b"2")
    assert stage.take("a/b", b"3")
    assert stage.found("#") == {"a": b"2", "a/b": b"3"}
    assert stage.found("a/+") == {"a/b": b"3"}
    assert len(stage.retained) == 2


def test_an_empty_message_removes_it():
    stage = Stage()
    stage.take("a", b"1")
    assert stage.take("a", b"")
    assert stage.take("never", b"")
    assert stage.found("#") == {}
    assert (len(stage.retained), stage.retained.size_bytes) == (0, 0)


def test_a_topic_that_comes_back_is_found_again():
    stage = Stage()
    for number in range(5):
        stage.take("a", b"%d" % number)
        assert stage.found("a") == {"a": b"%d" % number}
        stage.take("a", b"")
        assert stage.found("a") == {}


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
    stage = Stage(max_bytes=2_000)
    assert stage.take("a", bytes(500))
    assert not stage.take("b", bytes(1_500))
    assert not stage.take("a", bytes(2_500))
    assert stage.found("#") == {"a": bytes(500)}
    before = stage.retained.size_bytes
    assert stage.take("a", bytes(400))
    assert before - 110 <= stage.retained.size_bytes <= before - 90


@pytest.mark.parametrize("change", [b"", b"new"])
def test_what_changes_while_they_are_gone_through_is_seen(change):
    stage = Stage()
    for topic in "abc":
        stage.take(topic, b"old")
    going = stage.retained.matching(parse_filter("#"))
    assert next(going).topic == "a"
    stage.take("b", change)
    rest = {one.topic: one.records.row(0)[5] for one in going}
    assert rest == ({"b": b"new", "c": b"old"} if change else {"c": b"old"})
