"""Who a client is and what it may do: passwords, methods, certificates and ACL together, reloaded without a restart.

A user name counts for rules only if it was proven, by a password, a certificate or enhanced authentication. Files are
read again as a whole and swapped in one assignment; a bad file leaves the old rules in force.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from everlog.broker.auth.acl import Acl
from everlog.broker.auth.acl_rules import read_rules
from everlog.broker.auth.methods import Authenticator, Factory, Methods
from everlog.broker.auth.passwords import PasswordFile, Passwords, read_passwords
from everlog.broker.auth.scram import KIND, METHOD, ScramSha256

PASSWORD = "password"  # what proves a name, beside certificates and methods


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision whether a client may connect, and the user name that it has proven, if any, and by what."""

    admitted: bool
    user: str | None = None
    proof: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """The content of the files at one time."""

    passwords: Passwords | None
    file: PasswordFile
    acl: Acl


class Security:
    """The policy in force; `generation` rises with every reload, for those who cache answers."""

    def __init__(
        self,
        *,
        allow_anonymous: bool = True,
        password_file: str | None = None,
        acl_file: str | None = None,
        methods: Methods | None = None,
        decoy_key: bytes | None = None,
    ) -> None:
        self.allow_anonymous = allow_anonymous
        self.password_file = password_file
        self.acl_file = acl_file
        self.methods = methods or {}
        self._scram: Factory = ScramSha256 if decoy_key is None else partial(ScramSha256, decoy_key=decoy_key)
        self.generation = 0
        self._policy = self._read()

    @property
    def acl(self) -> Acl:
        """The rules in force."""
        return self._policy.acl

    @property
    def has_rules(self) -> bool:
        """Whether there is an ACL file; without one everything is allowed."""
        return self.acl_file is not None

    def may_receive(self, user: str | None, client_id: str, topic: str) -> bool:
        """Return whether a message may be sent to this client, by the rules in force."""
        return self.acl.access(user, client_id).may_receive(topic)

    def prepare(self) -> Callable[[], None]:
        """Read the files again without a change; return a call that puts them in force and can't fail."""
        policy = self._read()

        def put_in_force() -> None:
            self._policy = policy
            self.generation += 1

        return put_in_force

    def decide(
        self,
        user: str | None,
        password: bytes | None,
        certificate_user: str | None = None,
        allow_anonymous: bool | None = None,
    ) -> Admission | None:
        """Return the decision if it is known at once, or None if `verify` has to find it, in a thread.

        A listener may have an `allow_anonymous` of its own.
        """
        if certificate_user is not None:
            return Admission(True, certificate_user)
        passwords = self._policy.passwords
        if passwords is None or user is None:
            return Admission(
                self.allow_anonymous if allow_anonymous is None else allow_anonymous
            )  # a name that nothing proves does not count
        if password is None:
            return Admission(False)
        return Admission(True, user, PASSWORD) if passwords.recall(user, password) else None

    def verify(self, user: str, password: bytes) -> Admission:
        """Return the decision for a user name and password, which takes a while."""
        passwords = self._policy.passwords
        if passwords is None:
            return Admission(self.allow_anonymous)
        right = passwords.check(user, password)
        return Admission(True, user, PASSWORD) if right else Admission(False)

    def still_knows(self, user: str | None, proof: str) -> bool:
        """Return whether a user that was proven by a password or by SCRAM is still in the file; others always are."""
        if user is None:
            return True
        if proof == PASSWORD:
            return user in self._policy.file.hashes
        return proof != METHOD or METHOD in self.methods or self._policy.file.secret(KIND, user) is not None

    def exchange(self, method: str) -> Authenticator | None:
        """Begin an exchange by a method; None if it is unknown. SCRAM-SHA-256 is unknown unless a user has an entry."""
        factory = self.methods.get(method)
        if factory is None and method == METHOD and self._policy.file.has(KIND):
            factory = self._scram
        return None if factory is None else factory(self._policy.file)

    def _read(self) -> Policy:
        file = PasswordFile() if self.password_file is None else read_passwords(self.password_file)
        passwords = None if self.password_file is None else Passwords(file.hashes)
        return Policy(passwords, file, Acl(None if self.acl_file is None else read_rules(self.acl_file)))


def certificate_user(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the one common name of a certificate from `SSLObject.getpeercert()`, or None if it is not clear."""
    names = [
        value
        for part in (certificate or {}).get("subject", ())
        for attribute, value in part
        if attribute == "commonName"
    ]
    if len(names) != 1 or not names[0] or not names[0].isprintable():
        return None
    return str(names[0])
