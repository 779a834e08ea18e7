"""The payload column: bytes as they are, text, JSON of a declared type, or what a decoder makes of them.

A payload that is not what was declared becomes null (JSON) or has its bad bytes replaced (text); it never stops the
reading of the others.
"""

import importlib
import re
import secrets
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as pa_json

from everlog.base import UsageError

FEW = 8  # rows are parsed one by one when they do not parse together

_IS_TYPE = re.compile(r"(?i)(STRUCT|ARRAY|MAP)\s*<|DECIMAL\s*\(")
_MAY_END_EARLY = r"\]\s*,"  # a payload that closes the list it is put in

Decode = Callable[[pa.Array, pa.Array | None], pa.Array]  # called with payloads and their topics


def needs_topics(mode: str) -> bool:
    """Return whether the payloads are decoded by a function, which is given the topics too."""
    return mode not in ("binary", "string", "json")


def decoder(mode: str, kind: pa.DataType) -> Decode:
    """Return the function that turns payloads into values of a type."""
    if mode == "binary":
        return lambda payloads, topics: payloads
    if mode == "string":
        return lambda payloads, topics: to_text(payloads)
    if mode == "json":
        check_json_type(kind)
        return lambda payloads, topics: from_json(payloads, kind)
    return _checked(load_function(mode), mode, kind)


def spark_type(mode: str, payload_schema: str) -> str:
    """Return the type of the payload column in Spark's DDL."""
    if mode == "binary":
        return "BINARY NOT NULL"
    if mode == "string":
        return "STRING NOT NULL"
    is_type = _IS_TYPE.match(payload_schema) is not None or " " not in payload_schema
    return payload_schema if is_type else f"STRUCT<{payload_schema}>"


def load_function(name: str) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """Return the function that `module:function` names."""
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise UsageError(
            f"payload is binary, string, json or module:function, not {name!r}",
            hint="a decoder is named as in mycompany.decoders:decode_reading",
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"the decoder {name} can't be loaded: {error}", hint="workers must find it too") from error
    if not callable(found):
        raise UsageError(f"the decoder {name} is not a function")
    return found  # type: ignore[no-any-return]


def _checked(function: Callable[[pa.Array, pa.Array], pa.Array], name: str, kind: pa.DataType) -> Decode:
    """Return a decoder that checks type and number of its results, as Spark checks the first batch only."""

    def decode(payloads: pa.Array, topics: pa.Array | None) -> pa.Array:
        found = function(payloads, topics)
        if not isinstance(found, pa.Array) or len(found) != len(payloads):
            raise UsageError(f"the decoder {name} must return an Arrow array with a value for each payload")
        return found if found.type == kind else found.cast(kind)

    return decode


def to_text(payloads: pa.Array) -> pa.Array:
    """Return payloads as text; bytes that are not UTF-8 become U+FFFD."""
    try:
        return payloads.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.as_py().decode(errors="replace") for value in payloads], pa.string())


def check_json_type(kind: pa.DataType, nullable: bool = True) -> None:
    """Refuse a type that JSON can't be read as; each part of it must be nullable."""
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"payloadSchema names the field {twice} twice")
        for field in kind:
            check_json_type(field.type, field.nullable)
    elif pa.types.is_list(kind):
        check_json_type(kind.value_type, kind.value_field.nullable)
    elif not any(is_one(kind) for is_one in _JSON_TYPES):
        raise UsageError(
            f"payloads that are json can't be read as {kind}", hint="read them as string, and use Spark's from_json"
        )
    if not nullable:
        raise UsageError(
            "a payload that is no JSON of its type becomes null", hint="leave NOT NULL out of payloadSchema"
        )


_JSON_TYPES = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_date32,
    pa.types.is_timestamp,
)


def _as_read(kind: pa.DataType) -> pa.DataType:
    """Return the type to parse as: dates are parsed as text, as the parser expects a number of days."""
    if pa.types.is_date32(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_read(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_read(kind.value_type)))
    return kind


def from_json(payloads: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return payloads as values of a type; null where a payload is not JSON of that type."""
    found = _parse(payloads, kind)
    if found is not None:
        return found
    if len(payloads) == 1:
        return pa.nulls(1, kind)
    middle = len(payloads) // 2 if len(payloads) > FEW else 1
    return pa.concat_arrays([from_json(payloads[:middle], kind), from_json(payloads[middle:], kind)])


def _parse(payloads: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Parse all payloads at once; returns None unless each is one JSON value of the type."""
    count = len(payloads)
    if count == 0:
        return pa.array([], kind)
    key = "k" + secrets.token_hex(8)  # no payload can know it and pass for several rows
    starts = pc.binary_join_element_wise(f'{{"{key}":', pa.array(range(count)).cast(pa.string()), ',"v":[', "")
    lines = pc.binary_join_element_wise(starts.cast(pa.binary()), payloads, b"]}\n", b"")
    options = pa_json.ParseOptions(
        explicit_schema=pa.schema([(key, pa.int64()), ("v", pa.list_(_as_read(kind)))]),
        newlines_in_values=True,
        unexpected_field_behavior="ignore",
    )
    data = pa.py_buffer(b"".join(_value_bytes(lines)))
    try:
        table = pa_json.read_json(
            pa.BufferReader(data),
            pa_json.ReadOptions(use_threads=False, block_size=max(data.size + 1, 1 << 10)),
            options,
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != count or table.column(key).to_pylist() != list(range(count)):
        return None
    lists = table.column("v").combine_chunks()
    if pc.any(pc.not_equal(pc.list_value_length(lists), 1)).as_py() or lists.null_count or _has_end_early(payloads):
        return None
    try:
        return lists.flatten().cast(kind)
    except pa.ArrowInvalid:  # not a date
        return None


def _has_end_early(payloads: pa.Array) -> bool:
    """Return whether any payload is not JSON by itself, though it is within the line it was put in."""
    suspects = payloads.filter(pc.match_substring_regex(payloads, _MAY_END_EARLY))
    for payload in suspects:
        try:
            msgspec.json.decode(payload.as_buffer(), type=msgspec.Raw)
        except msgspec.DecodeError:
            return True
    return False


def _value_bytes(values: pa.Array) -> list[bytes]:
    """Return the bytes of a column's values, which are contiguous."""
    _, ends, data = values.buffers()
    bounds = memoryview(ends).cast("i")
    first, last = bounds[values.offset], bounds[values.offset + len(values)]
    return [memoryview(data)[first:last].tobytes()] if data is not None else []
