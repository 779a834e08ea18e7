"""Payloads as values: JSON that is exactly one value of its type, else null."""

import datetime

import pyarrow as pa

from everlog.spark.payload import from_json, spark_type


def parsed(kind: pa.DataType, *payloads: bytes) -> list[object]:
    return from_json(pa.array(payloads, pa.binary()), kind).to_pylist()  # type: ignore[no-any-return]


def test_a_payload_that_is_more_than_a_value_is_none() -> None:
    sent = (b"5", b'5,"zz":1', b'5],"v2":[1', b"6,7", b"", b" ", b"null", b"5]", b"9")
    assert parsed(pa.int32(), *sent) == [5, *[None] * 7, 9]


def test_values_with_arrays_in_them_are_what_they_are() -> None:
    kind = pa.struct([("x", pa.list_(pa.int32())), ("y", pa.int32())])
    assert parsed(kind, b'{"x": [1, 2], "y": 3}', b'{"x": [1]}, "y": 3}', b'{"z": [[1], 2], "y": 4}') == [
        {"x": [1, 2], "y": 3},
        None,
        {"x": None, "y": 4},
    ]


def test_dates_are_written_as_dates() -> None:
    kind = pa.struct([("d", pa.date32()), ("all", pa.list_(pa.date32()))])
    sent = (b'{"d": "2026-01-31"}', b'{"d": 7}', b'{"d": "soon"}', b'{"all": ["2026-01-01", null]}')
    assert parsed(kind, *sent) == [
        {"d": datetime.date(2026, 1, 31), "all": None},
        None,
        None,
        {"d": None, "all": [datetime.date(2026, 1, 1), None]},
    ]


def test_a_type_is_told_from_a_list_of_fields() -> None:
    assert spark_type("json", "a INT, b STRING") == "STRUCT<a INT, b STRING>"
    for text in ("INT", "STRUCT<a INT>", "struct <a INT>", "ARRAY < INT >", "DECIMAL (10, 2)"):
        assert spark_type("json", text) == text
