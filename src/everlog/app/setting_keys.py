"""Every setting as a value read from the schema: name, type, unit, default, meaning, and how a text is converted."""

import ast
import dataclasses
import difflib
import inspect
import io
import json
import os
import re
import tokenize
import tomllib
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from everlog.app.settings import Section, Settings
from everlog.app.units import (
    format_bytes,
    format_rate,
    format_seconds,
    format_share,
    parse_bytes,
    parse_rate,
    parse_seconds,
    parse_share,
)
from everlog.base import UsageError
from everlog.broker import Limits

NONE_WORDS = ("none", "off")
PREFIX = "EVERLOG_"


def _parse_size(text: str) -> int | float:
    return parse_share(text) if text.rstrip().endswith("%") else parse_bytes(text)


def _format_size(value: int | float) -> str:
    return format_share(value) if isinstance(value, float) else format_bytes(value)


_PARSE: dict[str, Any] = {"bytes": _parse_size, "duration": parse_seconds, "rate": parse_rate}
_FORMAT: dict[str, Any] = {"bytes": _format_size, "duration": format_seconds, "rate": format_rate}

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): '"none"',
    tuple[str, ...]: "a list of texts",
    dict[str, str]: "a table of texts",
}

# The lowest and highest of a limit where it is not 1 and unbounded; the highest are the protocol's.
LIMIT_RANGES: dict[str, tuple[int, int | None]] = {
    "topic_bytes": (1, 65_535),
    "topic_aliases": (0, 65_535),
    "client_id_bytes": (1, 65_535),
    "receive_maximum": (1, 65_535),
    "inflight_messages": (1, 65_535),
    "keep_alive_s": (0, 65_535),
    "message_bytes": (1, 268_435_460),
    "packet_bytes": (1, 268_435_460),
    "qos": (0, 2),
    "session_expiry_s": (0, 0xFFFF_FFFF),
    "retained_messages": (0, None),
    "retained_bytes": (0, None),
    "queue_bytes": (0, None),
    "spill_bytes": (0, None),
    "sessions": (0, None),
}


@dataclass(frozen=True, slots=True)
class Key:
    """One setting; `type` is what msgspec converts to, `unit` is bytes, duration, rate, path or nothing."""

    section: str
    name: str
    type: Any
    unit: str
    default: Any
    description: str

    @property
    def path(self) -> str:
        """`section.name`."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"{PREFIX}{self.section}_{self.name}".upper()

    @property
    def is_optional(self) -> bool:
        """Whether `none` is a value of it."""
        return type(None) in _members(self.type)

    @property
    def is_list(self) -> bool:
        """Whether it has many values."""
        return any(typing.get_origin(member) is tuple for member in _members(self.type))

    @property
    def is_table(self) -> bool:
        """Whether it has many values, each with a name."""
        return any(typing.get_origin(member) is dict for member in _members(self.type))

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it may be, if it is one of a few."""
        return tuple(
            str(word)
            for member in _members(self.type)
            if typing.get_origin(member) is typing.Literal
            for word in typing.get_args(member)
        )

    def convert(self, value: Any) -> Any:
        """Convert a TOML value, or a text from the environment or a flag; raises UsageError if that can't be."""
        given = value
        if isinstance(value, str):
            value = self._from_text(value)
        textual = isinstance(given, str) or (self.is_list and isinstance(given, tuple))
        if self.unit == "duration" and int in _members(self.type) and isinstance(value, float):
            if value != int(value):
                raise UsageError(f"{given!r} is not a whole number of seconds")
            value = int(value)
        try:
            return msgspec.convert(value, self.type, strict=not textual)
        except msgspec.ValidationError as error:
            raise UsageError(self._problem(given, str(error)), hint=self._hint(given)) from None

    def _from_text(self, text: str) -> Any:
        if self.is_optional and text.strip().lower() in NONE_WORDS:
            return None
        if self.unit == "path":
            return os.path.expanduser(text)
        if self.unit in _PARSE:
            return _PARSE[self.unit](text)
        if self.is_list:
            return _list_from_text(text)
        if self.is_table:
            return _table_from_text(text)
        return text

    def _problem(self, given: Any, message: str) -> str:
        if self.choices:
            return f"{given!r} is none of {', '.join(self.choices)}"
        bound = re.search(r"[<>]=? -?[0-9.]+$", message)
        if bound:
            return f"{given!r} is out of range, it must be {bound[0]}"
        return f"{given!r} is not {' or '.join(_WORDS[member] for member in _members(self.type) if member in _WORDS)}"

    def _hint(self, given: Any) -> str:
        close = difflib.get_close_matches(str(given), self.choices, 1)
        return f"did you mean {close[0]}?" if close else f"the default is {self.show(self.default, toml=True)}"

    def show(self, value: Any, *, toml: bool = False) -> str:
        """Return a value as it would be written, with its unit; with quotes as TOML."""
        if value is None:
            return '"none"' if toml else "none"
        if isinstance(value, bool):
            return str(value).lower()
        if self.is_list:
            return json.dumps(list(value), ensure_ascii=False)
        if self.is_table:  # an inline table of TOML
            pairs = (f"{json.dumps(name)} = {json.dumps(one, ensure_ascii=False)}" for name, one in value.items())
            return f"{{ {', '.join(pairs)} }}" if value else "{}"
        text = _FORMAT[self.unit](value) if self.unit in _FORMAT else str(value)
        if not toml or (isinstance(value, int | float) and self.unit not in _FORMAT):
            return str(text)
        return json.dumps(text, ensure_ascii=False)


@cache
def all_keys() -> dict[str, Key]:
    """Return every key by its path, in the order of the schema."""
    return {key.path: key for key in _walk()}


@cache
def section_meaning(section: str) -> str:
    """Return the sentence that describes a section."""
    if section == "limits":
        return "What one client, and all of them, may use."
    return inspect.cleandoc(typing.get_type_hints(Settings)[section].__doc__ or "")


def _walk() -> Iterator[Key]:
    for section, kind in typing.get_type_hints(Settings).items():
        if kind is Limits:
            yield from _limit_keys(section)
        else:
            yield from _section_keys(section, kind)


def _section_keys(section: str, kind: type[Section]) -> Iterator[Key]:
    hints = typing.get_type_hints(kind, include_extras=True)
    for one in msgspec.structs.fields(kind):
        metas = list(_metas(hints[one.name]))
        unit = next((str(meta.extra["unit"]) for meta in metas if meta.extra), "")
        description = next((meta.description for meta in metas if meta.description), "")
        default = one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()
        yield Key(section, one.name, hints[one.name], unit, default, description)


def _limit_keys(section: str) -> Iterator[Key]:
    hints, comments = typing.get_type_hints(Limits), _comments(Limits)
    for one in dataclasses.fields(Limits):
        lowest, highest = LIMIT_RANGES.get(one.name, (1, None))
        kind: Any = hints[one.name]
        if kind is not bool:
            kind = typing.Annotated[kind, msgspec.Meta(ge=lowest, le=highest)]
        yield Key(section, one.name, kind, _unit_of(one.name), one.default, comments.get(one.name, ""))


def _unit_of(name: str) -> str:
    if name.endswith("_per_second"):
        return "rate"
    return "bytes" if name.endswith("_bytes") else "duration" if name.endswith("_s") else ""


def _comments(kind: type) -> dict[str, str]:
    """Return the comment behind each field of a class; empty where there is no source to read."""
    try:
        source = inspect.getsource(kind)
    except OSError:
        return {}
    text = inspect.cleandoc(source)
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for one in ast.walk(ast.parse(text)):
        if isinstance(one, ast.AnnAssign):  # the formatter may have wrapped it
            lines = range(one.lineno, (one.end_lineno or one.lineno) + 1)
            found[ast.unparse(one.target)] = " ".join(comments[line] for line in lines if line in comments)
    return found


def _metas(kind: Any) -> Iterator[msgspec.Meta]:
    if typing.get_origin(kind) is typing.Annotated:
        yield from (meta for meta in kind.__metadata__ if isinstance(meta, msgspec.Meta))
        kind = kind.__origin__
    for member in typing.get_args(kind):
        yield from _metas(member)


def _members(kind: Any) -> tuple[Any, ...]:
    """Return a union's types without their annotations, or the type itself."""
    if typing.get_origin(kind) is typing.Annotated:
        return _members(kind.__origin__)
    if typing.get_origin(kind) in (typing.Union, type(int | str)):
        return tuple(inner for member in typing.get_args(kind) for inner in _members(member))
    return (kind,)


def _table_from_text(text: str) -> Any:
    """Parse `NAME=VALUE,NAME=VALUE`, or an inline table of TOML."""
    if text.lstrip().startswith("{"):
        try:
            return tomllib.loads(f"table = {text}")["table"]
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{text!r} is not a table: {error}", hint='write it like { "NAME" = "VALUE" }') from None
    pairs = [part.partition("=") for part in _list_from_text(text)]
    if not all(equals for _, equals, _ in pairs):
        raise UsageError(f"{text!r} is not a table", hint="write it like NAME=VALUE,NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _list_from_text(text: str) -> list[str]:
    if text.lstrip().startswith("["):
        try:
            value = json.loads(text)
        except ValueError as error:
            raise UsageError(
                f"{text!r} is not a list: {error}", hint='write it like ["a/#", "b/+"] or a/#,b/+'
            ) from None
        return value if isinstance(value, list) else [value]
    return [part.strip() for part in text.split(",") if part.strip()]
