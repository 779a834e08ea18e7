"""The 27 properties of MQTT 5.0 as one table, and the section of a packet that carries them.

`PROPERTIES` is the only place that knows a property's number, type, packets and range; decoder, encoder and the
publish kernel derive from it. The order of user properties and their duplicates are kept; an encoded section has its
properties in the order of their numbers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeAlias

from msgspec import Struct

from everlog.base import PeerError, UsageError
from everlog.mqtt import primitives
from everlog.mqtt.entry_scan import skip_pairs
from everlog.mqtt.long_list import LONG_BYTES, LongList
from everlog.mqtt.packet_type import PacketType
from everlog.mqtt.primitives import MAX_VARINT, U32_MAX, Reader, malformed, protocol_error
from everlog.mqtt.reasons import Reason

UserProperties: TypeAlias = tuple[tuple[str, str], ...] | LongList[tuple[str, str]]


class PropertyType(Enum):
    """The data representation of a property's value."""

    BYTE = auto()
    TWO_BYTES = auto()
    FOUR_BYTES = auto()
    VARINT = auto()
    BINARY = auto()
    STRING = auto()
    STRING_PAIR = auto()


@dataclass(frozen=True, slots=True)
class PropertyRule:
    """The rule of one property; `name` is its field in `Properties`, a bad value breaks `section` and `clause`."""

    id: int
    name: str
    type: PropertyType
    packets: frozenset[PacketType]
    section: str
    lowest: int = 0
    highest: int = U32_MAX
    repeatable: bool = False
    out_of_range: Reason = Reason.PROTOCOL_ERROR
    clause: str = ""  # the numbered clause of its range, where there is one


class Properties(Struct, frozen=True, kw_only=True):
    """The properties of one packet or will; None, or an empty tuple, is absent."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: UserProperties = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None


NO_PROPERTIES = Properties()

_T, _P = PropertyType, PacketType
_CONNECT, _CONNACK = frozenset({_P.CONNECT}), frozenset({_P.CONNACK})
_BOTH_CONNECTS = _CONNECT | _CONNACK
_WILL = frozenset({_P.WILL})
_MESSAGE = frozenset({_P.PUBLISH, _P.WILL})
_ENDS = frozenset({_P.CONNACK, _P.DISCONNECT})
_ANSWERS = _ENDS | {_P.PUBACK, _P.PUBREC, _P.PUBREL, _P.PUBCOMP, _P.SUBACK, _P.UNSUBACK, _P.AUTH}
_ANY = _ANSWERS | _MESSAGE | {_P.CONNECT, _P.SUBSCRIBE, _P.UNSUBSCRIBE}
_AUTH = _BOTH_CONNECTS | {_P.AUTH}

_RULES = (
    PropertyRule(0x01, "payload_format_indicator", _T.BYTE, _MESSAGE, "MQTT-3.3.2.3.2", highest=1),
    PropertyRule(0x02, "message_expiry_interval", _T.FOUR_BYTES, _MESSAGE, "MQTT-3.3.2.3.3"),
    PropertyRule(0x03, "content_type", _T.STRING, _MESSAGE, "MQTT-3.3.2.3.9"),
    PropertyRule(0x08, "response_topic", _T.STRING, _MESSAGE, "MQTT-3.3.2.3.5"),
    PropertyRule(0x09, "correlation_data", _T.BINARY, _MESSAGE, "MQTT-3.3.2.3.6"),
    PropertyRule(
        0x0B,
        "subscription_identifiers",
        _T.VARINT,
        frozenset({_P.PUBLISH, _P.SUBSCRIBE}),
        "MQTT-3.8.2.1.2",
        lowest=1,
        highest=MAX_VARINT,
        repeatable=True,  # in a server's PUBLISH
    ),
    PropertyRule(0x11, "session_expiry_interval", _T.FOUR_BYTES, _CONNECT | _ENDS, "MQTT-3.1.2.11.2"),
    PropertyRule(0x12, "assigned_client_identifier", _T.STRING, _CONNACK, "MQTT-3.2.2.3.7"),
    PropertyRule(0x13, "server_keep_alive", _T.TWO_BYTES, _CONNACK, "MQTT-3.2.2.3.14"),
    PropertyRule(0x15, "authentication_method", _T.STRING, _AUTH, "MQTT-3.1.2.11.9"),
    PropertyRule(0x16, "authentication_data", _T.BINARY, _AUTH, "MQTT-3.1.2.11.10"),
    PropertyRule(0x17, "request_problem_information", _T.BYTE, _CONNECT, "MQTT-3.1.2.11.7", highest=1),
    PropertyRule(0x18, "will_delay_interval", _T.FOUR_BYTES, _WILL, "MQTT-3.1.3.2.2"),
    PropertyRule(0x19, "request_response_information", _T.BYTE, _CONNECT, "MQTT-3.1.2.11.6", highest=1),
    PropertyRule(0x1A, "response_information", _T.STRING, _CONNACK, "MQTT-3.2.2.3.15"),
    PropertyRule(0x1C, "server_reference", _T.STRING, _ENDS, "MQTT-3.2.2.3.16"),
    PropertyRule(0x1F, "reason_string", _T.STRING, _ANSWERS, "MQTT-3.2.2.3.9"),
    PropertyRule(0x21, "receive_maximum", _T.TWO_BYTES, _BOTH_CONNECTS, "MQTT-3.1.2.11.3", lowest=1),
    PropertyRule(0x22, "topic_alias_maximum", _T.TWO_BYTES, _BOTH_CONNECTS, "MQTT-3.1.2.11.5"),
    PropertyRule(
        0x23,
        "topic_alias",
        _T.TWO_BYTES,
        frozenset({_P.PUBLISH}),
        "MQTT-3.3.2.3.4",
        lowest=1,
        out_of_range=Reason.TOPIC_ALIAS_INVALID,
        clause="MQTT-3.3.2-8",
    ),
    PropertyRule(0x24, "maximum_qos", _T.BYTE, _CONNACK, "MQTT-3.2.2.3.4", highest=1),
    PropertyRule(0x25, "retain_available", _T.BYTE, _CONNACK, "MQTT-3.2.2.3.5", highest=1),
    PropertyRule(0x26, "user_properties", _T.STRING_PAIR, _ANY, "MQTT-3.1.2.11.8", repeatable=True),
    PropertyRule(0x27, "maximum_packet_size", _T.FOUR_BYTES, _BOTH_CONNECTS, "MQTT-3.1.2.11.4", lowest=1),
    PropertyRule(0x28, "wildcard_subscription_available", _T.BYTE, _CONNACK, "MQTT-3.2.2.3.11", highest=1),
    PropertyRule(0x29, "subscription_identifier_available", _T.BYTE, _CONNACK, "MQTT-3.2.2.3.12", highest=1),
    PropertyRule(0x2A, "shared_subscription_available", _T.BYTE, _CONNACK, "MQTT-3.2.2.3.13", highest=1),
)
PROPERTIES: dict[int, PropertyRule] = {rule.id: rule for rule in _RULES}


def _read_pair(reader: Reader) -> tuple[str, str]:
    return reader.string(), reader.string()  # [MQTT-1.5.7-1]


def _read_numbered_pair(reader: Reader) -> tuple[str, str]:
    reader.pos += 1
    return _read_pair(reader)


_READ: dict[PropertyType, Callable[[Reader], Any]] = {
    _T.BYTE: Reader.u8,
    _T.TWO_BYTES: Reader.u16,
    _T.FOUR_BYTES: Reader.u32,
    _T.VARINT: Reader.varint,
    _T.BINARY: Reader.binary,
    _T.STRING: Reader.string,
    _T.STRING_PAIR: _read_pair,
}
_WRITE: dict[PropertyType, Callable[[Any], bytes]] = {
    _T.BYTE: lambda value: bytes((value,)),
    _T.TWO_BYTES: primitives.u16,
    _T.FOUR_BYTES: primitives.u32,
    _T.VARINT: primitives.varint,
    _T.BINARY: primitives.binary,
    _T.STRING: primitives.string,
    _T.STRING_PAIR: lambda pair: primitives.string(pair[0]) + primitives.string(pair[1]),
}
_USER_PROPERTY = 0x26
_NUMBERS = frozenset({_T.BYTE, _T.TWO_BYTES, _T.FOUR_BYTES, _T.VARINT})

# By packet and identifier: the rule, how to read its value, and whether the value has a range.
_PLANS: dict[PacketType, dict[int, tuple[PropertyRule, Callable[[Reader], Any], bool]]] = {
    packet: {rule.id: (rule, _READ[rule.type], rule.type in _NUMBERS) for rule in _RULES if packet in rule.packets}
    for packet in PacketType
}


def decode_properties(reader: Reader, packet: PacketType, *, from_client: bool = False) -> Properties:
    """Read a property length and its section from `reader`; of some packets only a client's breaks a rule."""
    size = reader.varint()
    if not size:  # [MQTT-2.2.2-1]
        return NO_PROPERTIES
    section = reader.section(size, "MQTT-2.2.2.1")
    plans = _PLANS[packet]
    values: dict[str, Any] = {}
    pairs: list[bytes] = []
    while section.pos < section.end:
        stop = skip_pairs(section.data, section.pos, section.end) if _USER_PROPERTY in plans else section.pos
        if stop > section.pos:
            pairs.append(section.data[section.pos : stop])
            section.pos = stop
            continue
        ident = section.varint()
        plan = plans.get(ident)
        if plan is None:
            malformed(f"property {ident:#04x} is not one of {packet.name}", "MQTT-2.2.2.2")
        rule, read, has_range = plan
        value = read(section)
        if has_range and not rule.lowest <= value <= rule.highest:
            raise PeerError(rule.out_of_range, f"{rule.name} is {value}", clause=rule.clause or rule.section)
        if rule.repeatable:
            if packet is PacketType.PUBLISH and from_client:
                protocol_error("a client's PUBLISH with a subscription identifier", "MQTT-3.3.4-6")
            if packet is PacketType.SUBSCRIBE and rule.name in values:
                protocol_error("more than one subscription identifier", "MQTT-3.8.2.1.2")
            values.setdefault(rule.name, []).append(value)
        elif rule.name in values:
            protocol_error(f"{rule.name} twice", rule.section)
        else:
            values[rule.name] = value
    if "subscription_identifiers" in values:
        values["subscription_identifiers"] = tuple(values["subscription_identifiers"])
    if pairs:
        values["user_properties"] = user_properties(b"".join(pairs))
    if (topic := values.get("response_topic")) is not None:
        check_topic_name(topic, "MQTT-3.3.2-14")
    # section 3.1.2.11.10: data for no method means nothing
    if "authentication_data" in values and "authentication_method" not in values:
        protocol_error("authentication_data without authentication_method", "MQTT-3.1.2.11.10")
    return Properties(**values)


def user_properties(raw: bytes) -> UserProperties:
    """Return well-formed user properties, one after the other as they are sent, as pairs."""
    pairs = LongList(raw, 0, _read_numbered_pair)
    return pairs if len(raw) > LONG_BYTES else tuple(pairs)


def encode_pair(name: str, value: str) -> bytes:
    """Write one user property, with its number."""
    return bytes((_USER_PROPERTY,)) + _WRITE[PropertyType.STRING_PAIR]((name, value))


def encode_properties(properties: Properties, packet: PacketType) -> bytes:
    """Write a property length and its section."""
    if properties is NO_PROPERTIES:
        return b"\x00"  # [MQTT-2.2.2-1]
    out = bytearray()
    for rule in _RULES:
        value = getattr(properties, rule.name)
        if value is None or value == ():  # a long list of pairs is never empty
            continue
        if packet not in rule.packets:
            raise UsageError(f"{packet.name} has no {rule.name}")
        if isinstance(value, LongList):
            out += value.raw
            continue
        for item in value if rule.repeatable else (value,):
            if rule.type in _NUMBERS and not rule.lowest <= item <= rule.highest:
                raise UsageError(f"{rule.name} can't be {item}")
            out += primitives.varint(rule.id)
            out += _WRITE[rule.type](item)
    return primitives.varint(len(out)) + bytes(out)


def check_topic_name(topic: str, wildcard_clause: str) -> None:
    """Refuse an empty topic name and wildcards in it."""
    if not topic:
        malformed("an empty topic name", "MQTT-4.7.3-1")
    if "#" in topic or "+" in topic:
        malformed("a wildcard in a topic name", wildcard_clause)


def encode_identifiers(identifiers: Iterable[int]) -> bytes:
    """Write Subscription Identifier properties as PUBLISHes to a subscriber carry them."""
    return b"".join(b"\x0b" + primitives.varint(identifier) for identifier in identifiers)
