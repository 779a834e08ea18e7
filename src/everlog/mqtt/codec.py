"""`decode` and `encode`: one whole packet of any type, in either direction, of MQTT 3.1, 3.1.1 or 5.0.

They check the fixed header and call the packet's own module; the packets too small to have one (PINGREQ, PINGRESP,
DISCONNECT, AUTH) are here. Whatever the bytes, `decode` returns a packet or raises a PeerError.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from everlog.base import DUP, UsageError
from everlog.mqtt import primitives
from everlog.mqtt.connect import decode_connack, decode_connect, encode_connack, encode_connect
from everlog.mqtt.packet_type import CLIENT_SENDS, FIXED_FLAGS, SERVER_SENDS, PacketType
from everlog.mqtt.packets import Auth, Disconnect, Packet, Pingreq, Pingresp, without_optional
from everlog.mqtt.primitives import Reader, malformed, protocol_error
from everlog.mqtt.properties import NO_PROPERTIES, decode_properties, encode_properties
from everlog.mqtt.publish import decode_ack, decode_publish, encode_ack, encode_publish
from everlog.mqtt.reasons import CLIENT_AUTH, CLIENT_DISCONNECT, SERVER_AUTH, SERVER_DISCONNECT, Reason
from everlog.mqtt.subscribe import (
    decode_suback,
    decode_subscribe,
    decode_unsuback,
    decode_unsubscribe,
    encode_suback,
    encode_subscribe,
    encode_unsuback,
    encode_unsubscribe,
)

_PINGREQ, _PINGRESP = Pingreq(), Pingresp()
_CLIENT_SENDS_311 = CLIENT_SENDS - {PacketType.AUTH}
_SERVER_SENDS_311 = SERVER_SENDS - {PacketType.AUTH, PacketType.DISCONNECT}


_CLIENT_HELLO = 0x16  # the first byte of TLS


def decode(first_byte: int, body: bytes, version: int, *, from_client: bool = True) -> Packet:
    """Return the packet with this first byte and body; for a CONNECT the version is its own."""
    kind = first_byte >> 4
    if version == 5:
        senders = CLIENT_SENDS if from_client else SERVER_SENDS
    else:
        senders = _CLIENT_SENDS_311 if from_client else _SERVER_SENDS_311
    if kind not in senders:
        _refuse_kind(kind, version, from_client)
    if kind in FIXED_FLAGS:
        flags, clause = FIXED_FLAGS[kind]
        found = first_byte & 0x0F
        if found != flags and not (version == 3 and flags and found == flags | DUP):  # 3.1 sends these again with DUP
            if first_byte == _CLIENT_HELLO and version == 0:
                malformed("this looks like TLS, and the port is a plain one", clause)
            malformed(f"flags {found:#06b} of a {PacketType(kind).name}", clause)
    return _DECODE[kind](first_byte, Reader(body, 0, len(body)), version, from_client)


def encode(packet: Packet, version: int) -> bytes:
    """Return the bytes of a whole packet, without what the version has no field for."""
    return _ENCODE[packet.type](packet, version)


def encode_within(packet: Packet, version: int, max_bytes: int | None) -> bytes | None:
    """Return the packet's bytes, without what is optional if that makes it too large; None if it is even so."""
    data = encode(packet, version)
    if max_bytes is not None and len(data) > max_bytes:  # [MQTT-3.1.2-24]
        data = encode(without_optional(packet), version)  # [MQTT-3.2.2-19] and its like in every answer
    return data if max_bytes is None or len(data) <= max_bytes else None


def _refuse_kind(kind: int, version: int, from_client: bool) -> NoReturn:
    if kind == 0:
        malformed("packet type 0", "MQTT-2.1.2")
    if kind == PacketType.AUTH and version != 5:
        malformed("packet type 15, which 3.1.1 reserves", "MQTT-2.2.1")  # of 3.1.1
    protocol_error(f"a {PacketType(kind).name} from a {'client' if from_client else 'server'}", "MQTT-2.1.2")


def _decode_pingreq(reader: Reader) -> Pingreq:
    reader.finish()
    return _PINGREQ


def _decode_pingresp(reader: Reader) -> Pingresp:
    reader.finish()
    return _PINGRESP


def _decode_disconnect(reader: Reader, version: int, from_client: bool) -> Disconnect:
    if version != 5 or reader.pos == reader.end:  # section 3.14.2.1: no code is normal disconnection
        reader.finish()
        return Disconnect()
    code = reader.u8()
    reason = (CLIENT_DISCONNECT if from_client else SERVER_DISCONNECT).get(code)
    if reason is None:
        protocol_error(f"a DISCONNECT with reason {code:#04x}", "MQTT-3.14.2-1")
    properties = NO_PROPERTIES
    if reader.pos < reader.end:  # section 3.14.2.2.1: below 2 bytes there is no property length
        properties = decode_properties(reader, PacketType.DISCONNECT)
        reader.finish()
    if from_client and properties.server_reference is not None:
        protocol_error("a client's DISCONNECT with a server reference", "MQTT-3.14.2.2.5")
    if not from_client and properties.session_expiry_interval is not None:
        protocol_error("a server's DISCONNECT with a session expiry", "MQTT-3.14.2-2")
    return Disconnect(reason, properties)


def _decode_auth(reader: Reader, from_client: bool) -> Auth:
    code = reader.u8() if reader.end else 0  # section 3.15.2.1: an empty AUTH says success
    reason = (CLIENT_AUTH if from_client else SERVER_AUTH).get(code)
    if reason is None:
        protocol_error(f"an AUTH with reason {code:#04x}", "MQTT-3.15.2-1")
    if not reader.end:
        return Auth()
    properties = decode_properties(reader, PacketType.AUTH)
    reader.finish()
    if properties.authentication_method is None:
        protocol_error("an AUTH without its method", "MQTT-3.15.2.2.2")
    return Auth(reason, properties)


def _encode_disconnect(packet: Disconnect, version: int) -> bytes:
    reason, properties = packet.reason, packet.properties
    if version != 5 or (reason is Reason.NORMAL_DISCONNECTION and properties == NO_PROPERTIES):
        return primitives.frame(PacketType.DISCONNECT, b"")
    if reason not in CLIENT_DISCONNECT and reason not in SERVER_DISCONNECT:  # [MQTT-3.14.2-1]
        raise UsageError(f"no DISCONNECT says {reason.name}")
    body = bytes((reason,))
    if properties != NO_PROPERTIES:
        body += encode_properties(properties, PacketType.DISCONNECT)
    return primitives.frame(PacketType.DISCONNECT, body)


def _encode_auth(packet: Auth, version: int) -> bytes:
    reason, properties = packet.reason, packet.properties
    if version != 5:
        raise UsageError("3.1.1 has no AUTH")
    if reason is Reason.SUCCESS and properties == NO_PROPERTIES:
        return primitives.frame(PacketType.AUTH, b"")
    if reason not in CLIENT_AUTH and reason not in SERVER_AUTH:  # [MQTT-3.15.2-1]
        raise UsageError(f"no AUTH says {reason.name}")
    if properties.authentication_method is None:  # section 3.15.2.2.2
        raise UsageError("an AUTH needs its method")
    return primitives.frame(PacketType.AUTH, bytes((reason,)) + encode_properties(properties, PacketType.AUTH))


# Called with the first byte, a reader of the body, the version and whether a client sent it.
_DECODE: dict[int, Callable[[int, Reader, int, bool], Packet]] = {
    PacketType.CONNECT: lambda first, reader, version, client: decode_connect(reader),
    PacketType.CONNACK: lambda first, reader, version, client: decode_connack(reader, version),
    PacketType.PUBLISH: decode_publish,
    PacketType.PUBACK: lambda first, reader, version, client: decode_ack(PacketType.PUBACK, reader, version),
    PacketType.PUBREC: lambda first, reader, version, client: decode_ack(PacketType.PUBREC, reader, version),
    PacketType.PUBREL: lambda first, reader, version, client: decode_ack(PacketType.PUBREL, reader, version),
    PacketType.PUBCOMP: lambda first, reader, version, client: decode_ack(PacketType.PUBCOMP, reader, version),
    PacketType.SUBSCRIBE: lambda first, reader, version, client: decode_subscribe(reader, version),
    PacketType.SUBACK: lambda first, reader, version, client: decode_suback(reader, version),
    PacketType.UNSUBSCRIBE: lambda first, reader, version, client: decode_unsubscribe(reader, version),
    PacketType.UNSUBACK: lambda first, reader, version, client: decode_unsuback(reader, version),
    PacketType.PINGREQ: lambda first, reader, version, client: _decode_pingreq(reader),
    PacketType.PINGRESP: lambda first, reader, version, client: _decode_pingresp(reader),
    PacketType.DISCONNECT: lambda first, reader, version, client: _decode_disconnect(reader, version, client),
    PacketType.AUTH: lambda first, reader, version, client: _decode_auth(reader, client),
}
_ENCODE: dict[PacketType, Callable[[Any, int], bytes]] = {
    PacketType.CONNECT: encode_connect,
    PacketType.CONNACK: encode_connack,
    PacketType.PUBLISH: encode_publish,
    PacketType.PUBACK: encode_ack,
    PacketType.PUBREC: encode_ack,
    PacketType.PUBREL: encode_ack,
    PacketType.PUBCOMP: encode_ack,
    PacketType.SUBSCRIBE: encode_subscribe,
    PacketType.SUBACK: encode_suback,
    PacketType.UNSUBSCRIBE: encode_unsubscribe,
    PacketType.UNSUBACK: encode_unsuback,
    PacketType.PINGREQ: lambda packet, version: primitives.frame(PacketType.PINGREQ, b""),
    PacketType.PINGRESP: lambda packet, version: primitives.frame(PacketType.PINGRESP, b""),
    PacketType.DISCONNECT: _encode_disconnect,
    PacketType.AUTH: _encode_auth,
}
