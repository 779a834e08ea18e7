"""Runs of messages that wait for their file: as records and as blocks they are what single messages would be."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.twins import TWINS, Twin
from tests.unit.streams.test_plain_requests import PlainOwner

from everlog.streams import DeleteAll, GetAll, Message, Set, ShardSettings

_FACTS = ("position", "time_us", "epoch", "previous", "seq", "messages", "bytes", "value", "key", "message_id")
VALUES = st.one_of(st.none(), st.binary(max_size=300), st.just(bytes(4096)))


def facts(records: list[Any]) -> list[Any]:
    return [(position, *(getattr(one, name) for name in _FACTS)) for position, one in records]


@pytest.mark.parametrize("twin", TWINS, ids=repr)
@settings(max_examples=40)
@given(st.lists(st.tuples(VALUES, st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=40), st.integers(0, 210))
def test_a_run_tells_what_single_messages_do(twin: Twin, messages: list[Any], end: int) -> None:
    run, singly, position, time_us, size = twin.MessageRun(3, 7, 5, 100, 1000), [], 10, 50, 1000
    previous = 7
    for number, (value, apart, later) in enumerate(messages):
        length = -1 if value is None else len(value)
        position, time_us = position + apart, time_us + later
        if not run.takes(3, position, time_us, length):
            break
        held = run.held_bytes
        assert run.add(position, time_us, b"xy" + (value or b"") + b"z", 2, length) == run.held_bytes - held
        size += max(0, length)
        record = twin.appended(position, time_us, 3, previous, 5 + number, 101 + number, size, value, None, None)
        singly.append((position, record))
        previous = position
    assert facts(run.records()) == facts(singly)
    assert run.block() == twin.pack_block([one for _, one in singly], 0)
    last = singly[-1][1]
    told = (run.last_position, run.time_us, run.last_seq, run.messages, run.bytes, run.count)
    assert told == (last.position, last.time_us, last.seq, last.messages, last.bytes, len(singly))

    cut = max(end, singly[0][0] + 1)  # the first one stays
    rest = run.cut(cut)
    assert facts(run.records()) == facts([one for one in singly if one[0] < cut])
    assert (facts(rest.records()) if rest is not None else []) == facts([one for one in singly if one[0] >= cut])
    last = run.records()[-1][1]
    assert (run.last_position, run.messages, run.bytes) == (last.position, last.messages, last.bytes)
    position, time_us = position + 1, time_us + 1
    if rest is not None and rest.takes(3, position, time_us, 1):
        rest.add(position, time_us, b"v", 0, 1)
        record = twin.appended(
            position, time_us, 3, previous, 5 + len(singly), 101 + len(singly), size + 1, b"v", None, None
        )
        assert facts(rest.records())[-1:] == facts([(position, record)])


@pytest.mark.parametrize("twin", TWINS, ids=repr)
def test_a_run_takes_what_a_block_takes(twin: Twin) -> None:
    run = twin.MessageRun(1, 0, 1, 0, 0)
    while run.takes(1, run.count, 0, 0):
        run.add(run.count, 0, b"", 0, 0)
    assert run.count == 256
    run = twin.MessageRun(1, 0, 1, 0, 0)
    while run.takes(1, run.count, 0, 4096):
        run.add(run.count, 0, bytes(4096), 0, 4096)
    assert run.count == 8
    run = twin.MessageRun(1, 0, 1, 0, 0)
    run.add(0, 0, b"", 0, 0)
    assert run.takes(1, 0xFFFF_FFFF, 0xFFFF_FFFF, 0)
    for facts_of_next in ((1, 1 << 32, 0, 0), (1, 1, 1 << 32, 0), (2, 1, 0, 0)):
        assert not run.takes(*facts_of_next)


def test_appends_become_blocks_of_what_is_committed(tmp_path: Path) -> None:
    owner: Any = PlainOwner(tmp_path, manual=True, settings=ShardSettings(apply_rows=40))
    owner.ask(Set("s", Message(b"0")))
    owner.turn()
    owner.journal.commit_now()
    answers = []
    for number in range(1, 100):
        answers.append(owner.ask(Set("s", Message(b"%d" % number))))
        if number % 7 == 0:
            owner.turn()
            owner.journal.commit_now(number - 6)  # the turn before, so that runs are cut in the midst
            owner.run_posted()
            assert len([one for one in answers if one]) == max(0, number - 7)
    owner.turn()
    state = owner.shard.views.find("s")
    file = owner.shard.views.files.get(state)
    (count,) = file.rows("SELECT sum(last - first + 1) + (SELECT count(*) FROM messages) FROM blocks")[0]
    assert owner.plainly == 99
    assert owner.shard.views.pending_rows == state.pending_rows == 100 - count
    assert count > 60
    owner.journal.commit_now()
    owner.run_posted()
    (chunk,) = owner.series(GetAll("s"))
    assert [(one.seq, one.value) for one in chunk.messages] == [(k + 1, b"%d" % k) for k in range(100)]
    assert (owner.shard.views.pending_rows, owner.shard.views.pending_bytes) == (0, 0)


def test_what_others_write_comes_between_runs(tmp_path: Path) -> None:
    owner: Any = PlainOwner(tmp_path)
    owner.do(Set("s", Message(b"0")))
    values = [b"%d" % number for number in range(1, 90)]
    for number, value in enumerate(values):
        if number % 30 == 3:
            owner.ask(Set("s", Message(value, {"h": "1"})))
        elif number % 30 == 5:
            owner.ask(Set("s", Message(value), message_id=f"{number}"))
        else:
            owner.ask(Set("s", Message(value)))
    owner.turn()
    (chunk,) = owner.series(GetAll("s"))
    assert [one.value for one in chunk.messages] == [b"0", *values]
    for value in values:
        owner.ask(Set("s", Message(value)))
    owner.ask(DeleteAll("s", 150))
    owner.turn()
    (chunk,) = owner.series(GetAll("s"))
    assert [(one.seq, one.value) for one in chunk.messages] == [(k + 91, values[k]) for k in range(60, 89)]
