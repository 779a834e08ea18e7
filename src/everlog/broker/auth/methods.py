"""The plug point for enhanced authentication (MQTT 5.0, section 4.12): what a method implements, and what it answers.

A method is a factory, named by an import path in `security.authentication_methods` and called once for each exchange
with the credentials in force. It returns an authenticator, which takes the client's data step by step and says what
comes next. It runs on the event loop, so it does no I/O and does not block.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from everlog.mqtt import Reason


@dataclass(frozen=True, slots=True)
class Applicant:
    """The client that asks; `user_name` and `password` are those of its CONNECT, not checked."""

    client_id: str
    peer: str
    user_name: str | None = None
    password: bytes | None = None
    certificate_user: str | None = None  # the common name of a verified client certificate


@dataclass(frozen=True, slots=True)
class Continue:
    """The exchange goes on: the data is sent to the client, and its answer is given to `step`."""

    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Accept:
    """The client is this user; the data, if any, is sent with the success."""

    user: str
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """The client is refused; `why` is the reason that it is told."""

    reason: Reason = Reason.NOT_AUTHORIZED
    why: str = "authentication failed"


Outcome: TypeAlias = Continue | Accept | Refuse


class Credentials(Protocol):
    """The entries of the password file for authentication methods."""

    def secret(self, kind: str, user: str) -> str | None:
        """Return the user's entry of a kind, such as `scram-sha-256`, as it is in the file, or None."""


class Authenticator(Protocol):
    """One exchange with one client."""

    def begin(self, method: str, data: bytes | None, applicant: Applicant) -> Outcome:
        """Take the data of a CONNECT, or of an AUTH that asks to authenticate again."""

    def step(self, data: bytes | None) -> Outcome:
        """Take the data of the client's next AUTH."""


Factory: TypeAlias = Callable[[Credentials], Authenticator]
Methods: TypeAlias = Mapping[str, Factory]
