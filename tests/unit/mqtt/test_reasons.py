"""Reason codes against the counts of the specification, and their 3.1.1 return codes."""

import pytest

from everlog.mqtt import PacketType, Reason, return_code
from everlog.mqtt.reasons import ALLOWED, CLIENT_AUTH, CLIENT_DISCONNECT, RETURN_CODES, SERVER_AUTH, SERVER_DISCONNECT


def test_there_are_as_many_codes_as_the_specification_has() -> None:
    assert len(Reason) == 43
    assert sum(reason.is_error for reason in Reason) == 35


def test_codes_that_mean_success_are_no_errors() -> None:
    assert not Reason.GRANTED_QOS_2.is_error
    assert Reason.UNSPECIFIED_ERROR.is_error


def test_zero_has_the_names_of_all_its_uses() -> None:
    assert Reason.SUCCESS is Reason.NORMAL_DISCONNECTION is Reason.GRANTED_QOS_0


def test_each_code_belongs_to_some_packet() -> None:
    tables = [*ALLOWED.values(), CLIENT_AUTH, SERVER_AUTH, CLIENT_DISCONNECT, SERVER_DISCONNECT]
    assert {reason for table in tables for reason in table.values()} == set(Reason)


@pytest.mark.parametrize("code", RETURN_CODES)
def test_return_code_of_its_own_reason_is_itself(code: int) -> None:
    assert return_code(RETURN_CODES[code]) == code


def test_malformed_connect_of_a_311_client_is_not_answered() -> None:
    assert return_code(Reason.MALFORMED_PACKET) is None
    assert return_code(Reason.PROTOCOL_ERROR) is None


def test_each_other_refusal_has_a_return_code_above_zero() -> None:
    refusals = set(ALLOWED[PacketType.CONNACK].values()) - {Reason.SUCCESS}
    for reason in refusals - {Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR}:
        assert return_code(reason) in range(1, 6)
