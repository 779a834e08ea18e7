"""What the author of a request that can't be read is told."""

import msgspec
import pytest

from everlog.persist.bad_requests import unreadable
from everlog.streams import Call, ErrorCode

PUT = ["put", "k", "key", [b"v", {"a": 1}]]


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (["set", "s", [b"v", {"a": 1}]], "message.headers: "),
        (["set", "s", [b"v"], "7"], "seq: "),
        (["set", "s", [b"v", None, 1 << 63]], "message.timestamp: "),
        (["batch", "k", [["put", "k", "key", [b"v"]], PUT]], "writes[1].message.headers: "),
        (["delete", "s", [1, 1 << 63]], "seqs: "),
        (["configure", "s", "stream", [0, 0, 0, 0, 0.5]], "config.max_rate: "),
        (["nonsense", "s"], ""),
        ("nonsense", ""),
        ([], ""),
    ],
)
def test_a_field_that_is_wrong_is_named(request_: object, named: str) -> None:
    body = msgspec.msgpack.encode([request_])
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.msgpack.decode(body, type=Call)
    failure = unreadable(caught.value, body)
    assert failure.code is ErrorCode.BAD_REQUEST
    assert failure.message.startswith(named or str(caught.value)[:20])


def test_bytes_that_are_no_request_are_told_as_they_are() -> None:
    assert unreadable(msgspec.DecodeError("Input data was truncated"), b"\x91").message == "Input data was truncated"
