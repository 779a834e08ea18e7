"""The connection's table: what a client may send when, and what the server may do."""

from itertools import product

import pytest

from everlog.base import PeerError, UsageError
from everlog.mqtt import (
    NEXT,
    Auth,
    Connect,
    Event,
    PacketType,
    Pingreq,
    Properties,
    Reason,
    State,
    Step,
    next_state,
    step_of,
)

METHOD = Properties(authentication_method="SCRAM")
IN_SESSION = [
    PacketType.PUBLISH,
    PacketType.PUBACK,
    PacketType.PUBREC,
    PacketType.PUBREL,
    PacketType.PUBCOMP,
    PacketType.SUBSCRIBE,
    PacketType.UNSUBSCRIBE,
    PacketType.PINGREQ,
]


def walk(*steps: Step) -> State:
    state = State.WAITING
    for step in steps:
        state = next_state(state, step)
    return state


def refused(*steps: Step) -> tuple[int, str]:
    before = walk(*steps[:-1])
    with pytest.raises(PeerError) as caught:
        next_state(before, steps[-1])
    return caught.value.reason, caught.value.clause


def test_plain_connection_opens_works_and_closes() -> None:
    assert walk(PacketType.CONNECT) is State.CONNECTING
    assert walk(PacketType.CONNECT, Event.ACCEPT) is State.OPEN
    assert walk(PacketType.CONNECT, Event.ACCEPT, *IN_SESSION) is State.OPEN
    assert walk(PacketType.CONNECT, Event.ACCEPT, PacketType.DISCONNECT) is State.CLOSING


def test_client_need_not_wait_for_its_connack() -> None:
    assert walk(PacketType.CONNECT, *IN_SESSION) is State.CONNECTING
    assert walk(PacketType.CONNECT, *IN_SESSION, Event.ACCEPT) is State.OPEN


def test_enhanced_authentication_goes_back_and_forth_and_can_be_repeated() -> None:
    opening: list[Step] = [
        Event.CONNECT_WITH_METHOD,
        Event.CHALLENGE,
        PacketType.AUTH,
        Event.CHALLENGE,
        PacketType.AUTH,
    ]
    assert walk(*opening) is State.AUTHENTICATING
    assert walk(*opening, Event.ACCEPT) is State.OPEN_WITH_METHOD
    again: list[Step] = [*opening, Event.ACCEPT, Event.RE_AUTHENTICATE]
    assert walk(*again) is State.REAUTHENTICATING
    assert walk(*again, *IN_SESSION, Event.CHALLENGE, PacketType.AUTH) is State.REAUTHENTICATING
    assert walk(*again, Event.CHALLENGE, PacketType.AUTH, Event.CONFIRM) is State.OPEN_WITH_METHOD


@pytest.mark.parametrize("first", [kind for kind in PacketType if kind is not PacketType.CONNECT])
def test_first_packet_must_be_a_connect(first: PacketType) -> None:
    assert refused(first) == (Reason.PROTOCOL_ERROR, "MQTT-3.1.0-1")


@pytest.mark.parametrize("second", [PacketType.CONNECT, Event.CONNECT_WITH_METHOD])
@pytest.mark.parametrize(
    "before",
    [
        [PacketType.CONNECT],
        [PacketType.CONNECT, Event.ACCEPT],
        [Event.CONNECT_WITH_METHOD],
        [Event.CONNECT_WITH_METHOD, Event.ACCEPT],
        [Event.CONNECT_WITH_METHOD, Event.ACCEPT, Event.RE_AUTHENTICATE],
    ],
)
def test_second_connect_is_a_protocol_error(before: list[Step], second: Step) -> None:
    assert refused(*before, second) == (Reason.PROTOCOL_ERROR, "MQTT-3.1.0-2")


@pytest.mark.parametrize("packet", IN_SESSION)
def test_authenticating_client_sends_only_auth_or_disconnect(packet: PacketType) -> None:
    assert refused(Event.CONNECT_WITH_METHOD, packet) == (Reason.PROTOCOL_ERROR, "MQTT-3.1.2-30")
    assert walk(Event.CONNECT_WITH_METHOD, PacketType.DISCONNECT) is State.CLOSING


@pytest.mark.parametrize("auth", [PacketType.AUTH, Event.RE_AUTHENTICATE])
@pytest.mark.parametrize("before", [[PacketType.CONNECT], [PacketType.CONNECT, Event.ACCEPT]])
def test_client_without_a_method_sends_no_auth(before: list[Step], auth: Step) -> None:
    assert refused(*before, auth) == (Reason.PROTOCOL_ERROR, "MQTT-4.12.0-7")


def test_auth_out_of_turn_is_a_protocol_error() -> None:
    opened: list[Step] = [Event.CONNECT_WITH_METHOD, Event.ACCEPT]
    wrong = (Reason.PROTOCOL_ERROR, "MQTT-4.12.1-1")
    assert refused(*opened, PacketType.AUTH) == wrong
    assert refused(*opened, Event.RE_AUTHENTICATE, Event.RE_AUTHENTICATE) == wrong
    assert refused(Event.CONNECT_WITH_METHOD, Event.RE_AUTHENTICATE) == wrong


@pytest.mark.parametrize("packet", list(PacketType))
def test_nothing_is_read_behind_the_end(packet: PacketType) -> None:
    assert refused(PacketType.CONNECT, PacketType.DISCONNECT, packet) == (Reason.PROTOCOL_ERROR, "MQTT-3.14.4-1")


@pytest.mark.parametrize(
    "steps",
    [
        [Event.ACCEPT],
        [PacketType.CONNECT, Event.CHALLENGE],
        [PacketType.CONNECT, Event.ACCEPT, Event.ACCEPT],
        [PacketType.CONNECT, Event.ACCEPT, Event.CONFIRM],
        [Event.CONNECT_WITH_METHOD, Event.CONFIRM],
        [PacketType.CONNECT, Event.CLOSE, Event.ACCEPT],
    ],
)
def test_server_out_of_turn_is_our_own_error(steps: list[Step]) -> None:
    before = walk(*steps[:-1])
    with pytest.raises(UsageError):
        next_state(before, steps[-1])


def test_every_step_in_every_state_has_an_answer() -> None:
    for state, step in product(State, [*PacketType, *Event]):
        try:
            assert next_state(state, step) is NEXT[state, step]
        except (PeerError, UsageError):
            assert (state, step) not in NEXT


@pytest.mark.parametrize("state", list(State))
def test_connection_can_be_lost_at_any_time(state: State) -> None:
    assert next_state(state, Event.CLOSE) is State.CLOSING


def test_step_of_a_packet_says_more_than_its_type_where_needed() -> None:
    assert step_of(Connect(5, "d")) is PacketType.CONNECT
    assert step_of(Connect(5, "d", properties=METHOD)) is Event.CONNECT_WITH_METHOD
    assert step_of(Auth(Reason.CONTINUE_AUTHENTICATION, METHOD)) is PacketType.AUTH
    assert step_of(Auth(Reason.RE_AUTHENTICATE, METHOD)) is Event.RE_AUTHENTICATE
    assert step_of(Pingreq()) is PacketType.PINGREQ
