"""The variable headers of CONNECTs: read once for all clients of a kind, and never mistaken for one another."""

import pytest

from everlog.base import PeerError
from everlog.mqtt import Connect, Properties, decode, encode
from everlog.mqtt import connect as room


def _read(packet: Connect) -> Connect:
    data = encode(packet, packet.version)
    found = decode(data[0], data[2:], 0)
    assert isinstance(found, Connect)
    return found


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_heads", {})


@pytest.mark.parametrize("version", [3, 4, 5])
def test_clients_of_a_kind_share_what_their_header_says(version: int) -> None:
    properties = Properties(receive_maximum=7) if version == 5 else Properties()
    one, other = (_read(Connect(version, f"client-{n}", keep_alive=60, properties=properties)) for n in (1, 2))
    assert one.properties is other.properties
    assert (one.client_id, other.client_id) == ("client-1", "client-2")
    assert len(room._heads) == 1


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_known_header_reads_as_an_unknown_one(version: int) -> None:
    kinds = [
        Connect(version, "a client", clean_start=clean, keep_alive=alive, user_name=name)
        for clean in (True, False)
        for alive in (0, 60, 0xFFFF)
        for name in (None, "name")
    ]
    assert [_read(one) for one in kinds] == [_read(one) for one in kinds] == kinds


def test_a_header_that_proves_a_user_is_not_remembered() -> None:
    proof = Properties(authentication_method="m", authentication_data=b"secret")
    _read(Connect(5, "client", properties=proof))
    assert room._heads == {}


def test_no_more_headers_are_remembered_than_there_is_room_for() -> None:
    for alive in range(1000):
        _read(Connect(4, "client", keep_alive=alive))
    assert 0 < len(room._heads) <= 256


def test_a_wrong_header_is_refused_each_time() -> None:
    data = bytearray(encode(Connect(4, "a client"), 4))
    data[9] |= 0x01  # the reserved flag
    for _ in range(2):
        with pytest.raises(PeerError):
            decode(data[0], bytes(data[2:]), 0)
    assert room._heads == {}
