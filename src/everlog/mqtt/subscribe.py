"""SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK (sections 3.8 to 3.11), read and written.

Of a topic filter only the string is checked here, not its wildcards: a bad filter fails alone in its SUBACK. The
filters of a long packet are checked and stay bytes (`LongList`).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import cython

from everlog.base import UsageError
from everlog.mqtt import primitives
from everlog.mqtt.entry_scan import skip_filters
from everlog.mqtt.long_list import LongList
from everlog.mqtt.packet_type import PacketType
from everlog.mqtt.packets import Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from everlog.mqtt.primitives import malformed, protocol_error
from everlog.mqtt.properties import NO_PROPERTIES, Properties, decode_properties, encode_properties
from everlog.mqtt.reasons import ALLOWED, Reason

if not cython.compiled:
    from everlog.mqtt.primitives import Reader

NO_LOCAL, RETAIN_AS_PUBLISHED = 0x04, 0x08
_LONG_BYTES = 256  # of filters; what is longer stays bytes, of which kernels take many at a time
_FAILURE = Reason.UNSPECIFIED_ERROR  # the one error code of a 3.1.1 SUBACK
_AT_MOST_FAILURE = bytes(min(code, _FAILURE) for code in range(256))

E = TypeVar("E")


def _read_list(
    reader: Reader, version: int, read: Callable[[Reader], E], again: Callable[[Reader], E]
) -> tuple[E, ...] | LongList[E]:
    """Read entries to the end of the packet; `version` is that of their options, 0 if they have none.

    A long list is checked, and its entries are read `again` when they are used.
    """
    if reader.end - reader.pos <= _LONG_BYTES:
        entries = []
        while reader.pos < reader.end:
            entries.append(read(reader))
        return tuple(entries)
    begin = reader.pos
    while reader.pos < reader.end:
        reader.pos = skip_filters(reader.data, reader.pos, reader.end, version)
        if reader.pos < reader.end:
            read(reader)  # raises what is wrong with it
    return LongList(reader.data, begin, again)


def _read_packet_id(reader: Reader, clause: str) -> int:
    packet_id = reader.u16()
    if not packet_id:
        protocol_error("packet identifier 0", clause)
    return packet_id


def _read_filter(reader: Reader) -> str:
    text = reader.string()  # [MQTT-3.8.3-1] [MQTT-3.10.3-1]
    if not text:
        malformed("an empty topic filter", "MQTT-4.7.3-1")
    return text


def _read_3_1_1(reader: Reader) -> Subscription:
    text = _read_filter(reader)
    qos = reader.u8()
    if qos > 2:
        malformed(f"requested QoS {qos:#04x}", "MQTT-3-8.3-4")  # of 3.1.1, numbered so there
    return Subscription(text, qos)


def _read_5(reader: Reader) -> Subscription:
    text = _read_filter(reader)
    options = reader.u8()
    qos = options & 3
    if options & 0xC0:
        malformed("reserved bits of the subscription options are set", "MQTT-3.8.3-5")
    if qos == 3:
        protocol_error("a maximum QoS of 3", "MQTT-3.8.3.1")
    if options >> 4 == 3:
        protocol_error("retain handling 3", "MQTT-3.8.3.1")
    no_local = bool(options & NO_LOCAL)
    if no_local and text.startswith("$share/"):
        protocol_error("no local on a shared subscription", "MQTT-3.8.3-4")
    return Subscription(text, qos, no_local, bool(options & RETAIN_AS_PUBLISHED), options >> 4)


def _filter_again(reader: Reader) -> str:
    data, begin = reader.data, reader.pos + 2
    reader.pos = end = begin + (data[begin - 2] << 8 | data[begin - 1])
    return data[begin:end].decode()


def _subscription_again(reader: Reader) -> Subscription:
    text = _filter_again(reader)
    options = reader.data[reader.pos]
    reader.pos += 1
    if options <= 2:
        return Subscription(text, options)
    return Subscription(text, options & 3, bool(options & NO_LOCAL), bool(options & RETAIN_AS_PUBLISHED), options >> 4)


def decode_subscribe(reader: Reader, version: int) -> Subscribe:
    """Read a SUBSCRIBE."""
    packet_id = _read_packet_id(reader, "MQTT-2.2.1-3")
    properties = NO_PROPERTIES
    if version == 5:
        properties = decode_properties(reader, PacketType.SUBSCRIBE)
    if reader.pos == reader.end:
        protocol_error("a SUBSCRIBE without a topic filter", "MQTT-3.8.3-2")
    read = _read_5 if version == 5 else _read_3_1_1
    return Subscribe(packet_id, _read_list(reader, version, read, _subscription_again), properties)


def encode_subscribe(packet: Subscribe, version: int) -> bytes:
    """Write a SUBSCRIBE."""
    if not packet.subscriptions:
        raise UsageError("a SUBSCRIBE needs a topic filter")  # [MQTT-3.8.3-2]
    out = _head(packet.packet_id, packet.properties, PacketType.SUBSCRIBE, version)
    for each in packet.subscriptions:
        options = primitives.qos(each.qos)
        if version == 5:
            options |= NO_LOCAL if each.no_local else 0
            options |= RETAIN_AS_PUBLISHED if each.retain_as_published else 0
            options |= primitives.retain_handling(each.retain_handling) << 4
        out += primitives.string(each.filter)
        out.append(options)
    return primitives.frame(PacketType.SUBSCRIBE, bytes(out))


def decode_unsubscribe(reader: Reader, version: int) -> Unsubscribe:
    """Read an UNSUBSCRIBE."""
    packet_id = _read_packet_id(reader, "MQTT-2.2.1-3")
    properties = decode_properties(reader, PacketType.UNSUBSCRIBE) if version == 5 else NO_PROPERTIES
    if reader.pos == reader.end:
        protocol_error("an UNSUBSCRIBE without a topic filter", "MQTT-3.10.3-2")
    return Unsubscribe(packet_id, _read_list(reader, 0, _read_filter, _filter_again), properties)


def encode_unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    """Write an UNSUBSCRIBE."""
    if not packet.filters:
        raise UsageError("an UNSUBSCRIBE needs a topic filter")  # [MQTT-3.10.3-2]
    out = _head(packet.packet_id, packet.properties, PacketType.UNSUBSCRIBE, version)
    for text in packet.filters:
        out += primitives.string(text)
    return primitives.frame(PacketType.UNSUBSCRIBE, bytes(out))


def _read_reasons(reader: Reader, kind: PacketType, clause: str) -> tuple[Reason, ...]:
    allowed = ALLOWED[kind]
    if reader.pos == reader.end:  # one reason for each filter, and there was a filter
        protocol_error(f"a {kind.name} without a reason", clause)
    reasons = []
    for code in reader.rest():
        reason = allowed.get(code)
        if reason is None:
            protocol_error(f"a {kind.name} with reason {code:#04x}", clause)
        reasons.append(reason)
    return tuple(reasons)


def decode_suback(reader: Reader, version: int) -> Suback:
    """Read a SUBACK."""
    packet_id = _read_packet_id(reader, "MQTT-2.2.1-6")
    properties = decode_properties(reader, PacketType.SUBACK) if version == 5 else NO_PROPERTIES
    reasons = _read_reasons(reader, PacketType.SUBACK, "MQTT-3.9.3-2")
    if version != 5 and max(reasons) > _FAILURE:
        protocol_error("a 3.1.1 SUBACK with a reserved return code", "MQTT-3.9.3-2")
    return Suback(packet_id, reasons, properties)


def encode_suback(packet: Suback, version: int) -> bytes:
    """Write a SUBACK; a 3.1.1 client is told one error for all."""
    out = _head(packet.packet_id, packet.properties, PacketType.SUBACK, version)
    if version == 5:
        out += _reasons(packet.reasons, PacketType.SUBACK)  # [MQTT-3.9.3-2]
    else:
        out += bytes(packet.reasons).translate(_AT_MOST_FAILURE)
    return primitives.frame(PacketType.SUBACK, bytes(out))


def decode_unsuback(reader: Reader, version: int) -> Unsuback:
    """Read an UNSUBACK; in 3.1.1 it has no payload."""
    packet_id = _read_packet_id(reader, "MQTT-2.2.1-6")
    if version != 5:
        reader.finish()
        return Unsuback(packet_id)
    properties = decode_properties(reader, PacketType.UNSUBACK)
    return Unsuback(packet_id, _read_reasons(reader, PacketType.UNSUBACK, "MQTT-3.11.3-2"), properties)


def encode_unsuback(packet: Unsuback, version: int) -> bytes:
    """Write an UNSUBACK."""
    out = _head(packet.packet_id, packet.properties, PacketType.UNSUBACK, version)
    if version == 5:
        out += _reasons(packet.reasons, PacketType.UNSUBACK)  # [MQTT-3.11.3-2]
    return primitives.frame(PacketType.UNSUBACK, bytes(out))


def _reasons(reasons: Sequence[int], kind: PacketType) -> bytes:
    codes = bytes(reasons)
    if not codes or codes.translate(None, bytes(ALLOWED[kind])):  # the rest, when the allowed ones are left out
        raise UsageError(f"no {kind.name} says {reasons!r}")
    return codes


def _head(packet_id: int, properties: Properties, kind: PacketType, version: int) -> bytearray:
    out = bytearray(primitives.packet_id(packet_id))
    if version == 5:
        out += encode_properties(properties, kind)
    return out
