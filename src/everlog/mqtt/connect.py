"""CONNECT and CONNACK (sections 3.1 and 3.2), read and written."""

import cython
from msgspec import Struct

from everlog.base import PeerError, UsageError
from everlog.mqtt import primitives
from everlog.mqtt.packet_type import PacketType
from everlog.mqtt.packets import Connack, Connect, Will
from everlog.mqtt.primitives import malformed, protocol_error
from everlog.mqtt.properties import NO_PROPERTIES, Properties, check_topic_name, decode_properties, encode_properties
from everlog.mqtt.reasons import ALLOWED, RETURN_CODES, Reason, return_code

if not cython.compiled:
    from everlog.mqtt.primitives import Reader

# The first seven or nine bytes of a CONNECT that we can read, protocol name and level, by version and whether it is of
# a bridge: those of Mosquitto set the upper bit of the level, and try again without if they are refused.
_PREAMBLES = {
    (5, False): b"\x00\x04MQTT\x05",
    (4, False): b"\x00\x04MQTT\x04",
    (3, False): b"\x00\x06MQIsdp\x03",
    (4, True): b"\x00\x04MQTT\x84",
    (3, True): b"\x00\x06MQIsdp\x83",
}

_MOST_HEADS = 256  # variable headers that are remembered; beyond, all are forgotten
_HEAD_BYTES = 64  # of one; a longer one is read each time

USER_NAME, PASSWORD, WILL_RETAIN, WILL_QOS, WILL, CLEAN_START, RESERVED = 0x80, 0x40, 0x20, 0x18, 0x04, 0x02, 0x01


def _read_version(reader: Reader) -> tuple[int, bool]:
    """Read version and whether the client is a bridge."""
    for kind, preamble in _PREAMBLES.items():
        if reader.data.startswith(preamble, reader.pos):
            reader.pos += len(preamble)
            return kind
    name, level = reader.string(), reader.u8()
    if name not in ("MQTT", "MQIsdp"):
        clause = "MQTT-3.1.2-1"
    else:
        clause = "MQTT-3.1.2-2"
    raise PeerError(Reason.UNSUPPORTED_PROTOCOL_VERSION, f"protocol {name!r} level {level}", clause=clause)


def version_of(body: bytes) -> int:
    """Return the version that a CONNECT names, whatever else is wrong with it; 0 if it is none that we can read."""
    return next((version for (version, _), preamble in _PREAMBLES.items() if body.startswith(preamble)), 0)


def _check_flags(flags: int, version: int) -> None:
    if flags & RESERVED and version != 3:  # 3.1 leaves the bit unused
        malformed("the reserved flag of a CONNECT is set", "MQTT-3.1.2-3")
    if flags & WILL:
        if flags & WILL_QOS == WILL_QOS:
            malformed("a will QoS of 3", "MQTT-3.1.2-12")
    elif flags & WILL_QOS:
        malformed("a will QoS without a will", "MQTT-3.1.2-11")
    elif flags & WILL_RETAIN:
        malformed("a retained will without a will", "MQTT-3.1.2-13")
    if version != 5 and flags & PASSWORD and not flags & USER_NAME:
        malformed("a password without a user name", "MQTT-3.1.2-22")  # of 3.1.1; MQTT 5.0 allows it


def _check_client_id(client_id: str, clean: bool, version: int) -> None:
    # [MQTT-3.1.3-8] of 3.1.1: no id needs a clean session; 3.1 always needs an id
    if not client_id and (version == 3 or (version == 4 and not clean)):
        raise PeerError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client identifier", clause="MQTT-3.1.3-8")


def _read_will(reader: Reader, flags: int, version: int) -> Will:
    properties = decode_properties(reader, PacketType.WILL) if version == 5 else NO_PROPERTIES
    topic = reader.string()  # [MQTT-3.1.3-11]
    check_topic_name(topic, "MQTT-4.7.0-1")
    payload = reader.binary()
    return Will(topic, payload, (flags & WILL_QOS) >> 3, bool(flags & WILL_RETAIN), properties)


class _Head(Struct, frozen=True):
    """The variable header of a CONNECT, which is the same for all clients of a kind."""

    version: int
    flags: int
    keep_alive: int
    properties: Properties
    is_bridge: bool


_heads: dict[bytes, _Head] = {}  # by their bytes


def _read_head(reader: Reader) -> _Head:
    version, is_bridge = _read_version(reader)
    flags = reader.u8()
    _check_flags(flags, version)
    keep_alive = reader.u16()
    properties = decode_properties(reader, PacketType.CONNECT) if version == 5 else NO_PROPERTIES
    return _Head(version, flags, keep_alive, properties, is_bridge)


def _known_head(reader: Reader) -> _Head:
    """Read the variable header at the start of the packet, or recognise one that was read before."""
    data = reader.data
    size = _head_bytes(data)
    if size:
        head = _heads.get(data[:size])
        if head is not None:
            reader.pos = size
            return head
    head = _read_head(reader)
    if reader.pos == size and head.properties.authentication_data is None:  # what proves a user is not kept
        if len(_heads) >= _MOST_HEADS:
            _heads.clear()
        _heads[data[:size]] = head
    return head


def _head_bytes(data: bytes) -> int:
    """Return where the variable header ends if it is well-formed, or 0 if it is long."""
    if len(data) < 14:
        return 0
    size = data[1] + 6  # name, level, flags, keep alive
    if size == 10 and data[6] == 5:
        size += 1 + data[10]  # the length of properties, if it is below 128
    return size if size < _HEAD_BYTES else 0


def decode_connect(reader: Reader) -> Connect:
    """Read a CONNECT of any version."""
    head = _known_head(reader)
    version, flags = head.version, head.flags
    # [MQTT-3.1.3-1] the fields of the payload in this order, [MQTT-3.1.3-3] the client identifier first
    client_id = reader.string()  # [MQTT-3.1.3-4]
    clean = bool(flags & CLEAN_START)
    _check_client_id(client_id, clean, version)
    will = _read_will(reader, flags, version) if flags & WILL else None  # [MQTT-3.1.2-9]
    user_name = password = None
    # MQTT 3.1 lets the remaining length overrule the flags: a flagged name or password may be missing
    if flags & USER_NAME and (version != 3 or reader.pos < reader.end):
        user_name = reader.string()  # [MQTT-3.1.2-17] [MQTT-3.1.3-12]
    if flags & PASSWORD and (version != 3 or reader.pos < reader.end):
        password = reader.binary()  # [MQTT-3.1.2-19]
    reader.finish()  # [MQTT-3.1.2-16] [MQTT-3.1.2-18] nothing that the flags do not announce
    return Connect(
        version, client_id, clean, head.keep_alive, will, user_name, password, head.properties, head.is_bridge
    )


def encode_connect(packet: Connect, version: int) -> bytes:
    """Write a CONNECT of the version that it names."""
    del version
    preamble = _PREAMBLES.get((packet.version, packet.is_bridge))
    if preamble is None:
        raise UsageError(f"no MQTT version has the number {packet.version}")
    if packet.version != 5 and packet.password is not None and packet.user_name is None:
        raise UsageError("3.1.1 has no password without a user name")  # [MQTT-3.1.2-22] of 3.1.1
    will, five = packet.will, packet.version == 5
    flags = CLEAN_START if packet.clean_start else 0
    if will is not None:
        flags |= WILL | primitives.qos(will.qos) << 3 | (WILL_RETAIN if will.retain else 0)
    if packet.user_name is not None:
        flags |= USER_NAME
    if packet.password is not None:
        flags |= PASSWORD
    out = [preamble, bytes((flags,)), primitives.u16(packet.keep_alive)]
    if five:
        out.append(encode_properties(packet.properties, PacketType.CONNECT))
    out.append(primitives.string(packet.client_id))
    if will is not None:
        if five:
            out.append(encode_properties(will.properties, PacketType.WILL))
        out += primitives.string(will.topic), primitives.binary(will.payload)
    if packet.user_name is not None:
        out.append(primitives.string(packet.user_name))
    if packet.password is not None:
        out.append(primitives.binary(packet.password))
    return primitives.frame(PacketType.CONNECT, b"".join(out))


def decode_connack(reader: Reader, version: int) -> Connack:
    """Read a CONNACK; a 3.1.1 return code becomes the reason that it means."""
    flags = reader.u8()
    if version == 3:
        flags = 0  # 3.1 leaves the byte unused
    if flags & 0xFE:
        malformed("reserved flags of a CONNACK are set", "MQTT-3.2.2-1")
    code = reader.u8()
    reason = (ALLOWED[PacketType.CONNACK] if version == 5 else RETURN_CODES).get(code)
    if reason is None:
        protocol_error(f"a CONNACK with reason {code:#04x}", "MQTT-3.2.2-8")
    if flags and reason.is_error:
        protocol_error("a refused connection has no session", "MQTT-3.2.2-6")
    properties = decode_properties(reader, PacketType.CONNACK) if version == 5 else NO_PROPERTIES
    reader.finish()
    return Connack(bool(flags), reason, properties)


def encode_connack(packet: Connack, version: int) -> bytes:
    """Write a CONNACK."""
    if packet.session_present and packet.reason.is_error:
        raise UsageError("a refused connection has no session")  # [MQTT-3.2.2-6]
    if version == 5:
        if packet.reason not in ALLOWED[PacketType.CONNACK]:  # [MQTT-3.2.2-8]
            raise UsageError(f"no CONNACK says {packet.reason.name}")
        body = bytes((packet.session_present, packet.reason))
        return primitives.frame(PacketType.CONNACK, body + encode_properties(packet.properties, PacketType.CONNACK))
    code = return_code(packet.reason)
    if code is None:
        raise UsageError(f"3.1.1 has no CONNACK for {packet.reason.name}", hint="close the connection without one")
    return primitives.frame(PacketType.CONNACK, bytes((packet.session_present and version == 4, code)))
