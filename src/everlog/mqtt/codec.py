"""`decode` and `encode`: one whole packet of any kind, either direction, MQTT 3.1, 3.1.1 or 5.0.

Checks the fixed header and hands on to the packet's own module; the packets too small for one (PINGREQ, PINGRESP,
DISCONNECT, AUTH) are here. Whatever the bytes, `decode` returns a packet or raises a PeerError.
"""

from collections.abc import Callable
from typing import Any

from everlog.base import UsageError
from everlog.mqtt import wire
from everlog.mqtt.connect import decode_connack, decode_connect, encode_connack, encode_connect
from everlog.mqtt.packet_type import CLIENT_SENDS, FIXED_FLAGS, SERVER_SENDS, PacketType
from everlog.mqtt.packets import Auth, Disconnect, Packet, Pingreq, Pingresp
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
from everlog.mqtt.wire import Reader, malformed, protocol_error

_TYPES = (None, *PacketType)  # by number: the enum's own call is many times slower
_PINGREQ, _PINGRESP = Pingreq(), Pingresp()
_SERVER_SENDS_311 = SERVER_SENDS - {PacketType.AUTH, PacketType.DISCONNECT}  # 3.1.1 servers send neither


def decode(first_byte: int, body: bytes, version: int, *, from_client: bool = True) -> Packet:
    """The packet with this first byte and body; for a CONNECT the version is its own."""
    kind = _check_first_byte(first_byte, version, from_client)
    reader = Reader(body, 0, len(body))
    if kind is PacketType.PUBLISH:
        return decode_publish(first_byte, reader, version, from_client)
    if PacketType.PUBACK <= kind <= PacketType.PUBCOMP:
        return decode_ack(kind, reader, version)
    if kind is PacketType.CONNECT:
        return decode_connect(reader)
    if kind is PacketType.DISCONNECT:
        return _decode_disconnect(reader, version, from_client)
    if kind is PacketType.AUTH:
        return _decode_auth(reader, from_client)
    return _DECODE[kind](reader, version)


def encode(packet: Packet, version: int) -> bytes:
    """The whole packet's bytes; what the version has no field for is left out."""
    return _ENCODE[packet.type](packet, version)


def _check_first_byte(first_byte: int, version: int, from_client: bool) -> PacketType:
    kind = _TYPES[first_byte >> 4]
    if kind is None:
        malformed("packet type 0", "MQTT-2.1.2")
    if kind is PacketType.AUTH and version != 5:
        malformed("packet type 15, which 3.1.1 reserves", "MQTT-2.2.1")  # of 3.1.1
    senders = CLIENT_SENDS if from_client else SERVER_SENDS if version == 5 else _SERVER_SENDS_311
    if kind not in senders:
        protocol_error(f"a {kind.name} from a {'client' if from_client else 'server'}", "MQTT-2.1.2")
    if kind is not PacketType.PUBLISH:
        flags, clause = FIXED_FLAGS[kind]
        found = first_byte & 0x0F
        if found != flags and not (version == 3 and flags and found == flags | 0x08):  # 3.1 repeats these with DUP
            malformed(f"flags {found:#06b} of a {kind.name}", clause)
    return kind


def _decode_pingreq(reader: Reader, version: int) -> Pingreq:
    reader.finish()
    return _PINGREQ


def _decode_pingresp(reader: Reader, version: int) -> Pingresp:
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
        return b"\xe0\x00"
    if reason not in CLIENT_DISCONNECT and reason not in SERVER_DISCONNECT:  # [MQTT-3.14.2-1]
        raise UsageError(f"no DISCONNECT says {reason.name}")
    body = bytes((reason,))
    if properties != NO_PROPERTIES:
        body += encode_properties(properties, PacketType.DISCONNECT)
    return wire.frame(0xE0, body)


def _encode_auth(packet: Auth, version: int) -> bytes:
    reason, properties = packet.reason, packet.properties
    if version != 5:
        raise UsageError("3.1.1 has no AUTH")
    if reason is Reason.SUCCESS and properties == NO_PROPERTIES:
        return b"\xf0\x00"
    if reason not in CLIENT_AUTH and reason not in SERVER_AUTH:  # [MQTT-3.15.2-1]
        raise UsageError(f"no AUTH says {reason.name}")
    if properties.authentication_method is None:  # section 3.15.2.2.2
        raise UsageError("an AUTH needs its method")
    return wire.frame(0xF0, bytes((reason,)) + encode_properties(properties, PacketType.AUTH))


_DECODE: dict[PacketType, Callable[[Reader, int], Packet]] = {
    PacketType.CONNACK: decode_connack,
    PacketType.SUBSCRIBE: decode_subscribe,
    PacketType.SUBACK: decode_suback,
    PacketType.UNSUBSCRIBE: decode_unsubscribe,
    PacketType.UNSUBACK: decode_unsuback,
    PacketType.PINGREQ: _decode_pingreq,
    PacketType.PINGRESP: _decode_pingresp,
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
    PacketType.PINGREQ: lambda packet, version: b"\xc0\x00",
    PacketType.PINGRESP: lambda packet, version: b"\xd0\x00",
    PacketType.DISCONNECT: _encode_disconnect,
    PacketType.AUTH: _encode_auth,
}
