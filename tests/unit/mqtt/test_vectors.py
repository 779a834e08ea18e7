"""Every named byte vector through the plain codec: what it says, or which clause it breaks."""

import contextlib
import json
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import fields

from everlog.base import PeerError
from everlog.mqtt import PROPERTIES, Packet, PacketType, Properties, decode, encode, read_fixed_header

FOLDER = Path(__file__).parents[2] / "vectors" / "mqtt"
VECTORS = [vector for path in sorted(FOLDER.glob("*.json")) for vector in json.loads(path.read_text())]
VALID = [vector for vector in VECTORS if "packet" in vector]
MALFORMED = [vector for vector in VECTORS if "reason" in vector]


def named(vectors: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in vectors]


def decode_vector(vector: dict[str, Any]) -> Packet:
    data = bytes.fromhex(vector["hex"])
    header = read_fixed_header(data, vector["version"])
    assert header is not None
    first_byte, length, size = header
    assert len(data) == size + length, "a vector is one whole packet"
    return decode(first_byte, data[size:], vector["version"], from_client=vector["direction"] == "client")


def plain(value: Any, expected: Any) -> Any:
    """The value in the words of a vector file: of a packet the expected fields, of properties all that are set."""
    if isinstance(value, Properties):
        present = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: plain(each, None) for name, each in present.items() if each is not None and each != ()}
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name), expected[name]) for name in expected}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [plain(each, expected[i] if expected else None) for i, each in enumerate(value)]
    if isinstance(value, IntEnum) and not isinstance(value, PacketType):
        return int(value)
    return value


@pytest.mark.parametrize("vector", named(VALID))
def test_valid_vector_says_what_its_file_expects(vector: dict[str, Any]) -> None:
    packet = decode_vector(vector)
    expected = dict(vector["packet"])
    assert packet.type.name == expected.pop("type")
    assert plain(packet, expected) == expected


@pytest.mark.parametrize("vector", named([vector for vector in VALID if vector.get("canonical", True)]))
def test_canonical_vector_encodes_to_its_own_bytes(vector: dict[str, Any]) -> None:
    assert encode(decode_vector(vector), vector["version"]).hex() == vector["hex"]


@pytest.mark.parametrize("vector", named([vector for vector in VALID if not vector.get("canonical", True)]))
def test_other_spelling_encodes_to_the_same_packet(vector: dict[str, Any]) -> None:
    packet = decode_vector(vector)
    again = encode(packet, vector["version"])
    assert again.hex() != vector["hex"]
    assert decode_vector({**vector, "hex": again.hex()}) == packet


@pytest.mark.parametrize("vector", named(MALFORMED))
def test_malformed_vector_names_its_reason_and_clause(vector: dict[str, Any]) -> None:
    with pytest.raises(PeerError) as caught:
        decode_vector(vector)
    assert (caught.value.reason, caught.value.clause) == (vector["reason"], vector["clause"])


def test_vector_names_are_unique() -> None:
    names = [vector["name"] for vector in VECTORS]
    assert len(names) == len(set(names))


def test_vectors_cover_every_packet_type_and_property() -> None:
    packets = [vector["packet"] for vector in VALID]
    assert {packet["type"] for packet in packets} == {kind.name for kind in PacketType} - {"WILL"}
    sections = [packet.get("properties", {}) for packet in packets]
    sections += [packet["will"].get("properties", {}) for packet in packets if packet.get("will")]
    assert {name for section in sections for name in section} == {rule.name for rule in PROPERTIES.values()}


@pytest.mark.parametrize("vector", named([vector for vector in VALID if vector["direction"] == "client"]))
def test_every_cut_of_a_valid_packet_is_a_packet_or_a_peer_error(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    for end in range(2, len(data)):
        with contextlib.suppress(PeerError):
            assert decode(data[0], data[2:end], vector["version"]).type == data[0] >> 4
