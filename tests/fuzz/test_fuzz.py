"""A bounded fuzz run with a seed. `make fuzz` goes on for longer, with AddressSanitizer."""

from itertools import islice

import pytest
from tests.fuzz.nats import fuzz_nats
from tests.fuzz.run import attempt, inputs
from tests.fuzz.target import ERRORS, fuzz_batch, fuzz_one, head

from everlog.mqtt import Properties, Publish, encode

INPUTS = 20_000


@pytest.mark.slow
def test_mutated_and_random_input_gives_the_same_packets_or_peer_errors_everywhere() -> None:
    for target, data in islice(inputs(seed=20_240), INPUTS):
        attempt(target, data)


@pytest.mark.parametrize(
    "data",
    [
        head(3, True) + encode(Publish("a", b"", dup=True), 3),
        head(4, True) + bytes.fromhex("30840000016178"),
        head(5, True) + bytes.fromhex("30850000016178"),
        head(5, True) + encode(Publish("a", b"", properties=Properties(topic_alias=65_535)), 5) * 2,
        head(0, True) + b"\xc0\x00",
        head(0, True) + b"\xc0",
    ],
    ids=["dup-qos-0-of-31", "long-length-of-311", "long-length-of-5", "highest-alias", "no-connect", "half-a-header"],
)
def test_input_that_once_broke_a_twin_is_agreed_on(data: bytes) -> None:
    for cuts in range(8):
        fuzz_one(data[:1] + bytes((cuts,)) + data[2:])


def test_disagreement_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.target.read_stream", lambda *given, **named: ([], min(ERRORS)))
    with pytest.raises(AssertionError):
        fuzz_one(head(4, True) + encode(Publish("a", b""), 4))


def test_failure_names_its_input() -> None:
    def fails(data: bytes) -> None:
        raise ValueError(data)

    with pytest.raises(ValueError) as caught:
        attempt(fails, b"\x01\x02")
    assert caught.value.__notes__ == ["fails(bytes.fromhex('0102'))"]


def test_inputs_are_the_same_for_the_same_seed() -> None:
    assert list(islice(inputs(5), 200)) == list(islice(inputs(5), 200))
    assert {target for target, _ in islice(inputs(5), 200)} == {fuzz_one, fuzz_batch, fuzz_nats}
