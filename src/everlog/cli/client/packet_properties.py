"""The option `-D COMMAND PROPERTY VALUE`, which sets a property of one kind of packet, as in Mosquitto's clients."""

import typing
from collections.abc import Iterable

from msgspec.structs import replace

from everlog.base import UsageError
from everlog.cli.client.words import JOINT, PAIR
from everlog.mqtt import NO_PROPERTIES, PacketType, Properties, encode_properties

COMMANDS = {
    "connect": PacketType.CONNECT,
    "publish": PacketType.PUBLISH,
    "subscribe": PacketType.SUBSCRIBE,
    "unsubscribe": PacketType.UNSUBSCRIBE,
    "will": PacketType.WILL,
}
_HINT = "write it like -D publish content-type text/plain, or -D connect user-property KEY VALUE"


def parse_properties(options: Iterable[str]) -> dict[str, Properties]:
    """Return the properties of each kind of packet that options name."""
    found: dict[str, Properties] = {}
    hints = typing.get_type_hints(Properties)
    for option in options:
        words = option.split(JOINT)
        if len(words) != (4 if words[1:2] == [PAIR] else 3) or words[0] not in COMMANDS:
            raise UsageError(f"-D {' '.join(words)!r} sets no property", hint=_HINT)
        command, name, *values = words
        before = found.get(command, NO_PROPERTIES)
        if name == PAIR:
            after = replace(before, user_properties=(*before.user_properties, (values[0], values[1])))
        else:
            field = name.replace("-", "_")
            if field not in hints or field in ("user_properties", "subscription_identifiers"):
                raise UsageError(f"-D: there is no property {name!r}", hint=_HINT)
            after = replace(before, **{field: _value(name, values[0], hints[field])})
        encode_properties(after, COMMANDS[command])  # raises if such a packet has no such property
        found[command] = after
    return found


def _value(name: str, text: str, kind: object) -> int | str | bytes:
    kinds = typing.get_args(kind)
    if bytes in kinds:
        return text.encode()
    if int not in kinds:
        return text
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"-D: {name} is a number, not {text!r}", hint=_HINT) from None


def merged(one: Properties, other: Properties) -> Properties:
    """Return the properties of both; those of `other` where both have one, and the user properties of both."""
    named = {
        name: value
        for name in Properties.__struct_fields__
        if name != "user_properties" and (value := getattr(other, name)) not in (None, ())
    }
    return replace(one, **named, user_properties=(*one.user_properties, *other.user_properties))
