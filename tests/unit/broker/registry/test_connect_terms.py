"""What a CONNECT is granted: worked out once for clients of a kind, and told each what is its own."""

from itertools import count

from everlog.broker.limits import Limits
from everlog.broker.registry import Agreements
from everlog.mqtt import Connack, Connect, Properties, decode


def _agreements(**limits: int) -> tuple[Agreements, "count[int]"]:
    return Agreements(Limits(**limits)), count(1)


def _connack(data: bytes | None, version: int) -> Connack:
    assert data is not None
    found = decode(data[0], data[2:], version, from_client=False)
    assert isinstance(found, Connack)
    return found


def test_clients_of_a_kind_are_sent_the_same_bytes() -> None:
    agreements, _ = _agreements()
    one, other = (agreements.agree(Connect(5, name), None, new_id=str) for name in ("a", "b"))
    assert one.connack.write(False) is other.connack.write(False)
    assert one.connack.write(True) != one.connack.write(False)
    assert (one.client_id, other.client_id) == ("a", "b")


def test_an_id_that_is_given_is_told_to_its_client_alone() -> None:
    agreements, numbers = _agreements()
    one, other, named = (
        agreements.agree(Connect(5, name), None, new_id=lambda: f"id-{next(numbers)}") for name in ("", "", "c")
    )
    told = [
        _connack(each.connack.write(False), 5).properties.assigned_client_identifier for each in (one, other, named)
    ]
    assert told == ["id-1", "id-2", None]


def test_response_information_names_the_client_that_asked() -> None:
    agreements, _ = _agreements()
    asks = Properties(request_response_information=1)
    told = [
        _connack(agreements.agree(Connect(5, name, properties=asks), None, new_id=str).connack.write(False), 5)
        for name in ("a", "b")
    ]
    assert [each.properties.response_information for each in told] == ["response/a/", "response/b/"]


def test_users_of_one_kind_of_client_stay_apart() -> None:
    agreements, _ = _agreements()
    users = [agreements.agree(Connect(4, "x"), user, new_id=str).session.user for user in ("ann", "bob", None)]
    assert users == ["ann", "bob", None]


def test_a_proof_is_not_remembered() -> None:
    agreements, _ = _agreements()
    proof = Properties(authentication_method="m", authentication_data=b"secret")
    agreements.agree(Connect(5, "x", properties=proof), None, new_id=str)
    assert not agreements._grants


def test_no_more_kinds_are_remembered_than_there_is_room_for() -> None:
    agreements, _ = _agreements()
    for alive in range(1000):
        terms = agreements.agree(Connect(4, "x", keep_alive=alive), None, new_id=str)
        assert terms.keep_alive_s == 1.5 * alive
    assert 0 < len(agreements._grants) <= 256
