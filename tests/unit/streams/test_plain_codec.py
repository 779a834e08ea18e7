"""Plain requests and answers are the bytes that the structs have, on both twins; what is not plain is left alone."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import DecodeError, msgpack
from tests.twins import TWINS, Twin

from everlog.streams import Call, Entries, Entry, KvGet, KvPut, Level, Message, Reply, Set, Written
from everlog.streams.effects import PutKey, PutMessage, Record, encode_record
from everlog.streams.values import MOST

twins = pytest.mark.parametrize("twin", TWINS, ids=repr)
decode_call = msgpack.Decoder(Call).decode

NUMBERS = st.one_of(
    st.sampled_from([0, 1, 127, 128, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, MOST]),
    st.integers(0, MOST),
)
POSITIONS = st.one_of(st.just(-1), NUMBERS)
VALUES = st.one_of(st.none(), st.binary(max_size=300), st.just(bytes(65_535)), st.just(bytes(65_536)))
TEXTS = st.one_of(st.text(max_size=40), st.sampled_from(["", "x" * 31, "x" * 32, "ü" * 128, "x" * 300]))
IDS = st.one_of(st.none(), TEXTS)


@twins
@given(numbers=st.tuples(NUMBERS, POSITIONS, NUMBERS, NUMBERS, NUMBERS, NUMBERS), value=VALUES, id=IDS, key=IDS)
def test_a_plain_record_has_the_bytes_of_the_struct(twin: Twin, numbers: Any, value: Any, id: Any, key: Any) -> None:
    epoch, previous, time_us, seq, messages, size = numbers
    one = twin.appended(7, time_us, epoch, previous, seq, messages, size, value, key, id)
    effect = PutMessage(seq, value) if key is None else PutKey(key, seq, value)
    record = Record(epoch, previous, time_us, seq, messages, size, [effect], id, seq, 1)
    assert twin.Packer().record(one) == encode_record(record)
    assert [one.effects, one.last_seq, one.count, one.seqs, one.is_visible] == [[effect], seq, 1, None, True]


@twins
@given(numbers=st.tuples(NUMBERS, POSITIONS, NUMBERS, NUMBERS, NUMBERS), level=st.sampled_from([0, 1]))
def test_an_answer_has_the_bytes_of_the_reply(twin: Twin, numbers: Any, level: int) -> None:
    epoch, previous, time_us, seq, position = numbers
    one = twin.appended(position, time_us, epoch, previous, seq, 1, 1, b"", None, None)
    reply = Reply(epoch, position, Level(level), Written(seq, time_us, position, previous))
    head = b"12345678" + (77).to_bytes(8, "little")
    packer = twin.Packer(b"12345678")
    assert packer.written(77, epoch, level, one) == head + msgpack.encode(reply)
    assert packer.framed(77, msgpack.encode(reply)) == head + msgpack.encode(reply)


@twins
@given(numbers=st.tuples(NUMBERS, POSITIONS, NUMBERS, NUMBERS, NUMBERS, NUMBERS), key=TEXTS, value=VALUES)
def test_an_entry_has_the_bytes_of_the_reply(twin: Twin, numbers: Any, key: str, value: Any) -> None:
    epoch, at, revision, time_us, expires_us, position = numbers
    entry = Entry(key, revision, time_us, value, None, None, expires_us, position, len(value or b""))
    made = twin.Packer().entry(5, epoch, at, key.encode(), revision, time_us, value, expires_us, position)
    assert made[16:] == msgpack.encode(Reply(epoch, at, Level.FSYNC, Entries([entry])))


MESSAGES = st.builds(
    Message, VALUES, st.one_of(st.none(), st.just({"a": "b"})), st.one_of(st.none(), st.integers(0, 9), st.just(1.5))
)
LEVELS = st.sampled_from(Level)
MAYBE = st.one_of(st.none(), st.integers(0, 5))
SETS = st.builds(
    Set, st.sampled_from(["s", "other"]), MESSAGES, MAYBE, IDS, st.sampled_from([0, 0, 9]), LEVELS, MAYBE,
    st.booleans(), IDS,
)  # fmt: skip
PUTS = st.builds(KvPut, st.just("s"), TEXTS, MESSAGES, IDS, st.sampled_from([0, 0, 9]), LEVELS, IDS)
GETS = st.builds(KvGet, st.just("s"), TEXTS, st.integers(-40, 1 << 40))
PLAIN_SETS = st.builds(Set, st.just("s"), st.builds(Message, VALUES), st.none(), IDS, st.just(0), LEVELS)
CALLS = st.builds(
    Call, st.one_of(SETS, PLAIN_SETS, PUTS, GETS), NUMBERS, POSITIONS, st.one_of(st.none(), st.none(), POSITIONS)
)


def is_plain(call: Call) -> bool:
    request: Any = call.request
    if call.first_seen_position is not None or request.stream != "s":
        return False
    if isinstance(request, KvGet):
        return request.max_bytes >= 0
    message = request.message
    if message.headers is not None or message.timestamp is not None or request.ttl_us or request.upload is not None:
        return False
    if request.level is Level.ARCHIVED:
        return False
    if isinstance(request, Set):
        return request.seq is None and request.expected_last_seq is None and not request.must_be_new
    return True


def read(twin: Twin, data: bytes) -> Any:
    """What the kernel reads of a request, as a `Call`; None if it is not plain."""
    call = twin.PlainCall()
    op = call.read(b"head" + data, 4, b"s")
    if not op:
        return None
    cut = lambda at, size: None if size < 0 else (b"head" + data)[at : at + size]  # noqa: E731
    id = cut(call.id_at, call.id_size)
    key = cut(call.key_at, call.key_size)
    message = Message(cut(call.value_at, call.value_size))
    text = None if id is None else id.decode()
    made: Any = Set("s", message, None, text, 0, Level(call.level))
    if op == 2:
        made = KvPut("s", key.decode(), message, text, 0, Level(call.level))
    if op == 3:
        made = KvGet("s", key.decode(), call.max_bytes)
    return Call(made, call.seen_epoch, call.seen_position)


@twins
@given(call=CALLS)
def test_plain_requests_are_read_as_they_are_and_others_not(twin: Twin, call: Call) -> None:
    found = read(twin, msgpack.encode(call))
    assert found == (call if is_plain(call) else None)


@twins
@given(call=CALLS, cut=st.integers(1, 40))
def test_half_a_request_is_not_plain(twin: Twin, call: Call, cut: int) -> None:
    data = msgpack.encode(call)
    assert read(twin, data[: max(0, len(data) - cut)]) is None
    assert read(twin, data + b"\0") is None


@twins
def test_numbers_that_no_request_may_have_are_left_to_the_decoder(twin: Twin) -> None:
    request = KvGet("s", "k")
    assert read(twin, msgpack.encode(Call(request, MOST))) == Call(request, MOST)
    assert read(twin, msgpack.encode(Call(request, MOST + 1))) is None


@twins
@given(call=CALLS, place=st.integers(0, 60), byte=st.integers(0, 255))
@example(Call(Set("s", Message(b""))), 5, 0xDA)
def test_changed_bytes_are_read_as_the_decoder_reads_them_or_not_at_all(
    twin: Twin, call: Call, place: int, byte: int
) -> None:
    data = bytearray(msgpack.encode(call))
    data[place % len(data)] = byte
    try:
        found = read(twin, bytes(data))
    except UnicodeDecodeError:
        return  # whoever takes it finds out
    if found is not None:
        try:
            assert decode_call(bytes(data)) == found
        except DecodeError:
            raise AssertionError(f"{bytes(data)!r} is no request") from None
