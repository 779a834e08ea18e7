"""Round trips of every packet at the extremes, and random bytes: a packet or a PeerError, nothing else."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from everlog.base import PeerError
from everlog.mqtt import (
    MAX_VARINT,
    NO_PROPERTIES,
    PROPERTIES,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    PropertyRule,
    PropertyType,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    decode,
    encode,
    read_fixed_header,
)
from everlog.mqtt.reasons import ALLOWED, CLIENT_AUTH, CLIENT_DISCONNECT, SERVER_AUTH, SERVER_DISCONNECT

LONGEST = 65_535
CHARACTERS = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
WORDS = st.text(CHARACTERS, max_size=20)
LONG_STRINGS = ["x" * LONGEST, "é" * (LONGEST // 2) + "x", "😀" * (LONGEST // 4) + "\ufeff"]
EXTREMES = st.integers(0, 2).map(lambda index: LONG_STRINGS[index])  # so that no strategy's repr holds them
STRINGS = st.one_of(WORDS, EXTREMES)
BINARY = st.one_of(st.binary(max_size=20), st.integers(0, 255).map(lambda byte: bytes((byte,)) * LONGEST))
TOPICS = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0+#"), min_size=1, max_size=20),
    st.just("t").map(lambda text: text * LONGEST),
)
FILTERS = STRINGS.filter(lambda text: text and not text.startswith("$share/"))
PACKET_IDS = st.one_of(st.integers(1, 65_535), st.sampled_from([1, 255, 256, 65_535]))
QOS = st.integers(0, 2)


def edges(lowest: int, highest: int) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([lowest, highest]), st.integers(lowest, highest))


HIGHEST = {
    PropertyType.BYTE: 0xFF,
    PropertyType.TWO_BYTES: 0xFFFF,
    PropertyType.FOUR_BYTES: 0xFFFF_FFFF,
    PropertyType.VARINT: MAX_VARINT,
}


def values(rule: PropertyRule) -> st.SearchStrategy[Any]:
    if rule.name == "response_topic":
        return TOPICS
    if rule.type in HIGHEST:
        number = edges(rule.lowest, min(rule.highest, HIGHEST[rule.type]))
        return st.lists(number, min_size=1, max_size=3).map(tuple) if rule.repeatable else number
    if rule.type is PropertyType.STRING_PAIR:
        return st.lists(st.tuples(STRINGS, STRINGS), min_size=1, max_size=3).map(tuple)
    return BINARY if rule.type is PropertyType.BINARY else STRINGS


def properties(packet: PacketType, *, without: tuple[str, ...] = ()) -> st.SearchStrategy[Properties]:
    rules = [rule for rule in PROPERTIES.values() if packet in rule.packets and rule.name not in without]
    chosen = st.fixed_dictionaries({}, optional={rule.name: values(rule) for rule in rules})
    return st.one_of(st.just(NO_PROPERTIES), chosen.map(with_method).map(lambda given: Properties(**given)))


def with_method(chosen: dict[str, Any]) -> dict[str, Any]:
    """Authentication data needs a method."""
    if "authentication_data" in chosen:
        chosen.setdefault("authentication_method", "")
    return chosen


@st.composite
def publishes(draw: st.DrawFn, from_client: bool) -> Publish:
    qos = draw(QOS)
    section = draw(properties(PacketType.PUBLISH, without=("subscription_identifiers",) if from_client else ()))
    topic = draw(st.one_of(st.just(""), TOPICS) if section.topic_alias else TOPICS)
    dup = draw(st.booleans()) if qos else False
    return Publish(topic, draw(BINARY), qos, draw(st.booleans()), dup, draw(PACKET_IDS) if qos else 0, section)


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    will = draw(
        st.none() | st.builds(Will, TOPICS, BINARY, QOS, st.booleans(), properties(PacketType.WILL)),
    )
    name, password = draw(st.none() | STRINGS), draw(st.none() | BINARY)
    section = draw(properties(PacketType.CONNECT))
    return Connect(5, draw(STRINGS), draw(st.booleans()), draw(edges(0, 65_535)), will, name, password, section)


def subscribes() -> st.SearchStrategy[Subscribe]:
    one = st.builds(Subscription, FILTERS, QOS, st.booleans(), st.booleans(), QOS)
    section = st.tuples(properties(PacketType.SUBSCRIBE, without=("subscription_identifiers",)), edges(1, MAX_VARINT))
    numbered = section.map(
        lambda pair: Properties(user_properties=pair[0].user_properties, subscription_identifiers=(pair[1],))
    )
    plain = properties(PacketType.SUBSCRIBE, without=("subscription_identifiers",))
    return st.builds(Subscribe, PACKET_IDS, st.lists(one, min_size=1, max_size=3).map(tuple), plain | numbered)


def reasons(kind: PacketType) -> st.SearchStrategy[Reason]:
    return st.sampled_from(sorted(ALLOWED[kind].values()))


def acks() -> st.SearchStrategy[Packet]:
    made = (Puback, Pubrec, Pubrel, Pubcomp)
    return st.one_of([st.builds(make, PACKET_IDS, reasons(make.type), properties(make.type)) for make in made])


def auths(codes: list[Reason]) -> st.SearchStrategy[Auth]:
    section = properties(PacketType.AUTH).filter(lambda each: each.authentication_method is not None)
    return st.builds(Auth, st.sampled_from(codes), section)


def refused_has_no_session(packet: Connack) -> Connack:
    return Connack(False, packet.reason, packet.properties) if packet.reason.is_error else packet


CLIENT_PACKETS: st.SearchStrategy[Packet] = st.one_of(
    connects(),
    publishes(True),
    acks(),
    subscribes(),
    st.builds(
        Unsubscribe,
        PACKET_IDS,
        st.lists(FILTERS, min_size=1, max_size=3).map(tuple),
        properties(PacketType.UNSUBSCRIBE),
    ),
    st.just(Pingreq()),
    st.builds(
        Disconnect,
        st.sampled_from(sorted(CLIENT_DISCONNECT.values())),
        properties(PacketType.DISCONNECT, without=("server_reference",)),
    ),
    auths(sorted(CLIENT_AUTH.values())),
)
SERVER_PACKETS: st.SearchStrategy[Packet] = st.one_of(
    st.builds(Connack, st.booleans(), reasons(PacketType.CONNACK), properties(PacketType.CONNACK)).map(
        refused_has_no_session
    ),
    publishes(False),
    acks(),
    st.builds(
        Suback,
        PACKET_IDS,
        st.lists(reasons(PacketType.SUBACK), min_size=1, max_size=5).map(tuple),
        properties(PacketType.SUBACK),
    ),
    st.builds(
        Unsuback,
        PACKET_IDS,
        st.lists(reasons(PacketType.UNSUBACK), min_size=1, max_size=5).map(tuple),
        properties(PacketType.UNSUBACK),
    ),
    st.just(Pingresp()),
    st.builds(
        Disconnect,
        st.sampled_from(sorted(SERVER_DISCONNECT.values())),
        properties(PacketType.DISCONNECT, without=("session_expiry_interval",)),
    ),
    st.one_of(st.just(Auth()), auths(sorted(SERVER_AUTH.values()))),
)


def again(data: bytes, version: int, from_client: bool) -> Packet:
    header = read_fixed_header(data, version)
    assert header is not None
    first_byte, length, size = header
    assert len(data) == size + length
    return decode(first_byte, data[size:], version, from_client=from_client)


@settings(max_examples=300, deadline=None)
@given(CLIENT_PACKETS)
def test_every_packet_of_a_client_comes_back_from_its_bytes(packet: Packet) -> None:
    assert again(encode(packet, 5), 5, True) == packet


@settings(max_examples=300, deadline=None)
@given(SERVER_PACKETS)
def test_every_packet_of_a_server_comes_back_from_its_bytes(packet: Packet) -> None:
    assert again(encode(packet, 5), 5, False) == packet


@settings(max_examples=150, deadline=None)
@given(CLIENT_PACKETS.filter(lambda packet: packet.type not in (PacketType.AUTH, PacketType.CONNECT)))
def test_bytes_for_an_older_version_say_the_same_each_time(packet: Packet) -> None:
    if isinstance(packet, Publish) and not packet.topic:
        return  # an alias has no meaning before version 5
    data = encode(packet, 4)
    assert encode(again(data, 4, True), 4) == data


@settings(max_examples=100, deadline=None)
@given(
    version=st.sampled_from([3, 4]),
    client_id=STRINGS.filter(bool),
    will=st.none() | st.builds(Will, TOPICS, BINARY, QOS, st.booleans()),
    name=STRINGS,
    password=st.none() | BINARY,
)
def test_connect_of_an_older_version_comes_back(
    version: int, client_id: str, will: Will | None, name: str, password: bytes | None
) -> None:
    packet = Connect(version, client_id, False, 65_535, will, name, password)
    assert again(encode(packet, version), version, True) == packet


def answer(first_byte: int, body: bytes, version: int, from_client: bool) -> None:
    """Any other exception than a PeerError is the failure that these tests look for."""
    try:
        outcome: Packet | PeerError = decode(first_byte, body, version, from_client=from_client)
    except PeerError as error:
        outcome = error
    if isinstance(outcome, PeerError):
        assert Reason(outcome.reason).is_error
        assert outcome.clause.startswith("MQTT-")
    else:
        assert outcome.type == first_byte >> 4


@settings(max_examples=1500, deadline=None)
@given(st.integers(0, 255), st.binary(max_size=64), st.sampled_from([3, 4, 5]), st.booleans())
@example(0x10, b"\x00\x04MQTT\x05\xc6\x00\x00", 5, True)
@example(0x30, b"\xff\xff", 5, True)
def test_random_bytes_are_a_packet_or_a_peer_error(first: int, body: bytes, version: int, from_client: bool) -> None:
    answer(first, body, version, from_client)


SMALL = st.one_of(CLIENT_PACKETS, SERVER_PACKETS).map(lambda packet: encode(packet, 5)).filter(lambda d: len(d) < 128)


@settings(max_examples=600, deadline=None)
@given(st.data(), SMALL, st.sampled_from([4, 5]), st.booleans())
def test_mutated_packets_are_a_packet_or_a_peer_error(
    data: st.DataObject, packet: bytes, version: int, from_client: bool
) -> None:
    mutated = bytearray(packet[2:])
    for _ in range(data.draw(st.integers(1, 4))):
        if mutated:
            place = data.draw(st.integers(0, len(mutated) - 1))
            mutated[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(mutated)))
    answer(packet[0], bytes(mutated), version, from_client)
    answer(packet[0], bytes(mutated[:cut]), version, from_client)
