"""What is wrong with a request that can't be read, in the words of its author: names of fields, not places in bytes."""

import re
from typing import Any, get_args, get_type_hints

import msgspec

from everlog.streams import AnyRequest, Call, ErrorCode, Failure, Write

_KINDS = {kind.__struct_config__.tag: kind for kind in get_args(AnyRequest)}
_PLACE = re.compile(r"(?: - at| in) `\$([^`]*)`$")
_STEP = re.compile(r"\[(\d+|\.\.\.)\]")


def unreadable(error: Exception, body: bytes | memoryview) -> Failure:
    """Return the refusal of a request that is not what it should be."""
    text = str(error)
    found = _PLACE.search(text)
    named = "" if found is None else _named(found[1], body)
    message = f"{named}: {text[: found.start()]}" if found is not None and named else text
    return Failure(ErrorCode.BAD_REQUEST, message, "give what is expected there" if named else "")


def _named(path: str, body: bytes | memoryview) -> str:
    """Return the name of a place in a request, such as `message.headers`; empty if it has none."""
    names: list[str] = []
    kind: Any = Call
    try:
        at: Any = msgspec.msgpack.decode(body)
        for step in _STEP.findall(path):
            if step == "...":
                break
            at = at[int(step)]
            if kind == list[Write]:
                names[-1] += f"[{step}]"
                kind = _KINDS[at[0]]
            elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                place = int(step) - (kind.__struct_config__.tag is not None)
                name = kind.__struct_fields__[place]
                names.append(name)
                kind = _KINDS[at[0]] if name == "request" else get_type_hints(kind)[name]
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        pass
    return ".".join(names[1:])  # the first is the request
