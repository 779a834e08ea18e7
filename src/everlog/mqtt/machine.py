"""The life of one connection as the server sees it: a table from (state, step) to the next state.

A step is a packet from the client, keyed by its type or, where the type does not say enough, by an `Event` (see
`step_of`), or something that the server does. A missing key is the peer's protocol error if a packet caused it, and our
own error if the server did. The owner of the connection keeps the state; there is none in here.
"""

from enum import Enum, auto
from typing import TypeAlias

from everlog.base import PeerError, UsageError
from everlog.mqtt.packet_type import CLIENT_SENDS, PacketType
from everlog.mqtt.packets import Auth, Connect, Packet
from everlog.mqtt.reasons import Reason


class State(Enum):
    """The state of a connection."""

    WAITING = auto()  # for the CONNECT
    CONNECTING = auto()  # CONNECT seen; what the client sends before its CONNACK is held back
    AUTHENTICATING = auto()  # CONNECT with an authentication method seen
    OPEN = auto()
    OPEN_WITH_METHOD = auto()  # opened by enhanced authentication, so that may be repeated
    REAUTHENTICATING = auto()  # open, while the client authenticates again
    CLOSING = auto()  # nothing more is read

    __hash__ = object.__hash__  # of its place, as it is compared; an enum's own is a call in Python


class Event(Enum):
    """A step that a packet's type does not tell, or that the server takes."""

    CONNECT_WITH_METHOD = auto()
    RE_AUTHENTICATE = auto()
    ACCEPT = auto()  # CONNACK with success sent
    CHALLENGE = auto()  # AUTH with continue sent
    CONFIRM = auto()  # AUTH with success sent
    CLOSE = auto()  # CONNACK with an error or DISCONNECT sent, connection lost, or time is up

    __hash__ = object.__hash__


Step: TypeAlias = PacketType | Event

_FROM_PEER = frozenset({Event.CONNECT_WITH_METHOD, Event.RE_AUTHENTICATE})
_IN_SESSION = CLIENT_SENDS - {PacketType.CONNECT, PacketType.DISCONNECT, PacketType.AUTH}
_LIVE = tuple(state for state in State if state is not State.CLOSING)

NEXT: dict[tuple[State, Step], State] = {
    (State.WAITING, PacketType.CONNECT): State.CONNECTING,  # [MQTT-3.1.0-1]
    (State.WAITING, Event.CONNECT_WITH_METHOD): State.AUTHENTICATING,
    (State.CONNECTING, Event.ACCEPT): State.OPEN,  # [MQTT-3.1.4-5]
    (State.CONNECTING, PacketType.DISCONNECT): State.CLOSING,
    (State.AUTHENTICATING, Event.CHALLENGE): State.AUTHENTICATING,  # [MQTT-4.12.0-2]
    (State.AUTHENTICATING, PacketType.AUTH): State.AUTHENTICATING,  # [MQTT-4.12.0-3]
    (State.AUTHENTICATING, Event.ACCEPT): State.OPEN_WITH_METHOD,
    (State.AUTHENTICATING, PacketType.DISCONNECT): State.CLOSING,  # [MQTT-3.1.2-30] allows it
    (State.OPEN, PacketType.DISCONNECT): State.CLOSING,
    (State.OPEN_WITH_METHOD, Event.RE_AUTHENTICATE): State.REAUTHENTICATING,  # [MQTT-4.12.1-1]
    (State.OPEN_WITH_METHOD, PacketType.DISCONNECT): State.CLOSING,
    (State.REAUTHENTICATING, Event.CHALLENGE): State.REAUTHENTICATING,
    (State.REAUTHENTICATING, PacketType.AUTH): State.REAUTHENTICATING,
    (State.REAUTHENTICATING, Event.CONFIRM): State.OPEN_WITH_METHOD,
    (State.REAUTHENTICATING, PacketType.DISCONNECT): State.CLOSING,
    # section 3.1.4: a client need not wait for its CONNACK; section 4.12.1: nor for the end of a re-authentication
    **{
        (state, packet): state
        for state in (State.CONNECTING, State.OPEN, State.OPEN_WITH_METHOD, State.REAUTHENTICATING)
        for packet in _IN_SESSION
    },
    **{(state, Event.CLOSE): State.CLOSING for state in State},  # [MQTT-3.2.2-7] [MQTT-4.12.0-4]
}

# The clause that a packet breaks for which the table has no key: by state and packet, else by state.
_BROKEN: dict[tuple[State, Step], tuple[str, str]] = {
    **{(state, PacketType.CONNECT): ("a second CONNECT", "MQTT-3.1.0-2") for state in _LIVE},
    **{(state, Event.CONNECT_WITH_METHOD): ("a second CONNECT", "MQTT-3.1.0-2") for state in _LIVE},
    **{
        (state, step): ("an AUTH although CONNECT had no method", "MQTT-4.12.0-7")
        for state in (State.CONNECTING, State.OPEN)
        for step in (PacketType.AUTH, Event.RE_AUTHENTICATE)
    },
    (State.AUTHENTICATING, Event.RE_AUTHENTICATE): ("a re-authentication before the CONNACK", "MQTT-4.12.1-1"),
    (State.OPEN_WITH_METHOD, PacketType.AUTH): ("an AUTH that continues nothing", "MQTT-4.12.1-1"),
    (State.REAUTHENTICATING, Event.RE_AUTHENTICATE): ("a re-authentication within another", "MQTT-4.12.1-1"),
}
_BROKEN_IN: dict[State, tuple[str, str]] = {
    State.WAITING: ("the first packet is not a CONNECT", "MQTT-3.1.0-1"),
    State.AUTHENTICATING: ("a packet other than AUTH and DISCONNECT before the CONNACK", "MQTT-3.1.2-30"),
    State.CLOSING: ("a packet after the end", "MQTT-3.14.4-1"),
}


def step_of(packet: Packet) -> Step:
    """Return the key of a client's packet in `NEXT`."""
    if isinstance(packet, Connect) and packet.properties.authentication_method is not None:
        return Event.CONNECT_WITH_METHOD
    if isinstance(packet, Auth) and packet.reason is Reason.RE_AUTHENTICATE:
        return Event.RE_AUTHENTICATE
    return packet.type


def next_state(state: State, step: Step) -> State:
    """Return the state after a step."""
    following = NEXT.get((state, step))
    if following is not None:
        return following
    if isinstance(step, Event) and step not in _FROM_PEER:
        raise UsageError(f"no {step.name} while {state.name}")
    message, clause = _BROKEN.get((state, step)) or _BROKEN_IN.get(
        state, ("a packet that no client sends", "MQTT-2.1.2")
    )
    raise PeerError(Reason.PROTOCOL_ERROR, f"{message} ({step.name})", clause=clause)
