"""What `everlog sub` prints for a message: the payload, with its topic, or what a format of mosquitto_sub's -F says.

A format is parsed once, into pieces that each turn a message and its time into bytes (an integer of
nanoseconds, so that its last digits are true). For a terminal, what comes from a
message has its control characters shown; what the format itself says is left as it is.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from everlog.base import UsageError
from everlog.cli.visible import visible, visible_json
from everlog.mqtt import Message

Formatter = Callable[..., bytes]  # takes a message and, unless it has just arrived, its time
Piece = Callable[[Message, int], bytes]

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "a": b"\a", "v": b"\v", "e": b"\x1b", "0": b"\0", "\\": b"\\"}
_SECOND_NS = 1_000_000_000
_TOKEN = re.compile(r"%(.)|@(.)|\\(.)|([^%@\\]+)|(.)", re.DOTALL)


def formatter(
    *,
    verbose: bool,
    template: str | None,
    newline: bool,
    show: Callable[[bytes], bytes] | None = None,
    pretty: bool = False,
) -> Formatter:
    """Return the function that turns a message into output; `show` is applied to all that peers may choose.

    With `pretty`, JSON is over several lines.
    """
    show = show_on_output() if show is None else show
    end = b"\n" if newline else b""
    if template is not None:
        pieces = [*_pieces(template, show, pretty), lambda message, now_ns: end]
        return lambda message, at_ns=None: _apply(pieces, message, at_ns)
    if verbose:
        return lambda message, at_ns=None: show(message.topic) + b" " + show(message.payload) + end
    return lambda message, at_ns=None: show(message.payload) + end


def show_on_output() -> Callable[[bytes], bytes]:
    """Return what peers' bytes pass on their way out: no control characters on a terminal, all bytes elsewhere."""
    return visible if sys.stdout.isatty() else bytes


def _apply(pieces: list[Piece], message: Message, at_ns: int | None) -> bytes:
    now_ns = time.time_ns() if at_ns is None else at_ns
    return b"".join([piece(message, now_ns) for piece in pieces])


def _pieces(template: str, show: Callable[[bytes], bytes], pretty: bool) -> list[Piece]:
    pieces: list[Piece] = []
    for found in _TOKEN.finditer(template):
        percent, at, escape, text, lone = found.groups()
        if percent is not None:
            if pretty and percent in "jJ":
                pieces.append(partial(as_json, payload_as_json=percent == "J", pretty=True))
            else:
                pieces.append(_percent(percent, found.start() + 1, show))
        elif at is not None:
            pieces.append(_at(at))
        elif escape is not None and escape in _ESCAPES:
            pieces.append(_constant(_ESCAPES[escape]))
        elif text is not None:
            pieces.append(_constant(text.encode()))
        else:
            raise UsageError(
                f"-F: {lone or found[0]!r} at {found.start() + 1} means nothing", hint="double %, @ and \\"
            )
    return pieces


def _constant(value: bytes) -> Piece:
    return lambda message, now_ns: value


def _percent(letter: str, column: int, show: Callable[[bytes], bytes]) -> Piece:
    piece = _PERCENT.get(letter)
    if piece is None:
        raise UsageError(
            f"-F: %{letter} at {column} means nothing", hint=f"use one of {', '.join(f'%{one}' for one in _PERCENT)}"
        )
    return lambda message, now_ns: show(piece(message, now_ns))


def _at(letter: str) -> Piece:
    if letter == "@":
        return _constant(b"@")
    if letter == "N":
        return lambda message, now_ns: b"%09d" % (now_ns % _SECOND_NS)
    return lambda message, now_ns: time.strftime(f"%{letter}", time.localtime(now_ns // _SECOND_NS)).encode()


def _text(value: object) -> bytes:
    return b"" if value is None else str(value).encode()


def as_json(
    message: Message,
    now_ns: int,
    before: Mapping[str, str] = {},
    *,
    payload_as_json: bool = False,
    pretty: bool = False,
) -> bytes:
    """Return the message as one JSON object, in mosquitto_sub's words, with some members before the usual ones."""
    payload: Any = message.payload.decode("utf-8", "replace")
    if payload_as_json:
        try:
            payload = json.loads(payload)
        except ValueError:
            payload = None
    members: dict[str, Any] = {
        **before,
        "tst": _iso(now_ns, micros=True),
        "topic": message.topic.decode(),
        "qos": message.qos,
        "retain": int(message.retain),
        "payloadlen": len(message.payload),
    }
    if message.qos:
        members["mid"] = message.packet_id
    if message.section:
        members["properties"] = _properties(message)
    members["payload"] = payload
    layout: dict[str, Any] = {"indent": 2} if pretty else {"separators": (",", ":")}
    return visible_json(json.dumps(members, ensure_ascii=False, **layout)).encode("utf-8", "replace")


def _properties(message: Message) -> dict[str, Any]:
    found = message.properties
    members: dict[str, Any] = {
        "payload-format-indicator": found.payload_format_indicator,
        "message-expiry-interval": found.message_expiry_interval,
        "content-type": found.content_type,
        "response-topic": found.response_topic,
        "correlation-data": None if found.correlation_data is None else found.correlation_data.hex(),
        "subscription-identifier": list(found.subscription_identifiers) or None,
        "user-properties": [{key: value} for key, value in found.user_properties] or None,
    }
    return {name: value for name, value in members.items() if value is not None}


def _iso(now_ns: int, *, micros: bool = False) -> str:
    local = time.localtime(now_ns // _SECOND_NS)
    fraction = f".{now_ns % _SECOND_NS // 1000:06d}" if micros else ""
    return time.strftime("%Y-%m-%dT%H:%M:%S", local) + fraction + time.strftime("%z", local)


_PERCENT: dict[str, Piece] = {
    "%": _constant(b"%"),
    "t": lambda message, now_ns: message.topic,
    "p": lambda message, now_ns: message.payload,
    "x": lambda message, now_ns: message.payload.hex().encode(),
    "X": lambda message, now_ns: message.payload.hex().upper().encode(),
    "l": lambda message, now_ns: _text(len(message.payload)),
    "q": lambda message, now_ns: _text(message.qos),
    "r": lambda message, now_ns: _text(int(message.retain)),
    "m": lambda message, now_ns: _text(message.packet_id),
    "I": lambda message, now_ns: _text(_iso(now_ns)),
    "U": lambda message, now_ns: _text(f"{now_ns // _SECOND_NS}.{now_ns % _SECOND_NS:09d}"),
    "j": lambda message, now_ns: as_json(message, now_ns),
    "J": lambda message, now_ns: as_json(message, now_ns, payload_as_json=True),
    "C": lambda message, now_ns: _text(message.properties.content_type),
    "D": lambda message, now_ns: message.properties.correlation_data or b"",
    "E": lambda message, now_ns: _text(message.properties.message_expiry_interval),
    "F": lambda message, now_ns: _text(message.properties.payload_format_indicator),
    "P": lambda message, now_ns: _text(" ".join(f"{k}:{v}" for k, v in message.properties.user_properties)),
    "R": lambda message, now_ns: _text(message.properties.response_topic),
    "S": lambda message, now_ns: _text(",".join(map(str, message.properties.subscription_identifiers))),
}
