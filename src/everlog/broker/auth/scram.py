"""SCRAM-SHA-256 (RFC 5802 and 7677), the server's side, without I/O: the client proves its password without sending it.

An entry of the password file is `$scram-sha-256$<iterations>$<salt>$<stored key>$<server key>`, all in base64: whoever
reads it can check a proof but not make one. Channel binding is not offered.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import stringprep
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from everlog.base import UsageError
from everlog.broker.auth.methods import Accept, Applicant, Continue, Credentials, Outcome, Refuse
from everlog.mqtt import Reason

METHOD = "SCRAM-SHA-256"
KIND = "scram-sha-256"
ITERATIONS = 32_768  # RFC 7677 asks for at least 4,096; a client computes them once for each connection
_LEAST_ITERATIONS = 4096
_SALT_BYTES = 16
_NONCE_BYTES = 18
_MAX_CHARACTERS = 256  # of a user name or password
_MAX_MESSAGE_BYTES = 4096  # a longer message of a client is refused
_DECOY_KEY = secrets.token_bytes(32)  # for who has none that outlives the process
_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,
)


@dataclass(frozen=True, slots=True)
class Verifier:
    """The data kept of a password, enough to check a proof."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        parts = (str(self.iterations), *(_text(part) for part in (self.salt, self.stored_key, self.server_key)))
        return f"${KIND}$" + "$".join(parts)


def make_verifier(password: str, salt: bytes | None = None, iterations: int = ITERATIONS) -> Verifier:
    """Return the verifier of a password."""
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password).encode(), salt, iterations)
    return Verifier(iterations, salt, _hash(_hmac(salted, b"Client Key")), _hmac(salted, b"Server Key"))


def parse_verifier(entry: str) -> Verifier:
    """Parse an entry of the password file; UsageError if it is damaged."""
    try:
        _, kind, iterations, *parts = entry.split("$")
        salt, stored_key, server_key = (base64.b64decode(part, validate=True) for part in parts)
        verifier = Verifier(int(iterations), salt, stored_key, server_key)
    except (ValueError, binascii.Error):
        raise UsageError("the SCRAM-SHA-256 entry is damaged") from None
    if kind != KIND or verifier.iterations < _LEAST_ITERATIONS or not salt or len(stored_key + server_key) != 64:
        raise UsageError("the SCRAM-SHA-256 entry is damaged")
    return verifier


def prepared(text: str) -> str:
    """Return a user name or password after SASLprep (RFC 4013); UsageError if it has prohibited characters."""
    if len(text) > _MAX_CHARACTERS:
        raise UsageError(f"more than {_MAX_CHARACTERS} characters")
    if text.isascii() and text.isprintable():
        return text  # nothing in it is mapped or prohibited, and asking ten tables of each character takes long
    mapped = "".join(" " if stringprep.in_table_c12(one) else one for one in text if not stringprep.in_table_b1(one))
    text = unicodedata.normalize("NFKC", mapped)
    if len(text) > _MAX_CHARACTERS:  # before the tables are asked: one character may become eighteen
        raise UsageError(f"more than {_MAX_CHARACTERS} characters")
    if any(prohibits(one) for one in text for prohibits in _PROHIBITED):
        raise UsageError("characters that SASLprep (RFC 4013) prohibits")
    right_to_left = [stringprep.in_table_d1(one) for one in text]
    if any(right_to_left) and not (
        right_to_left[0] and right_to_left[-1] and not any(map(stringprep.in_table_d2, text))
    ):
        raise UsageError("characters of both directions, which SASLprep (RFC 4013) prohibits")
    return text


class ScramSha256:
    """One exchange: client-first, server-first, client-final, server-final."""

    __slots__ = ("_auth_message", "_credentials", "_decoy_key", "_gs2", "_make_nonce", "_nonce", "_user", "_verifier")

    def __init__(
        self,
        credentials: Credentials,
        make_nonce: Callable[[], str] = lambda: base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode(),
        decoy_key: bytes = _DECOY_KEY,
    ) -> None:
        self._credentials = credentials
        self._decoy_key = decoy_key
        self._make_nonce = make_nonce
        self._user = self._nonce = self._auth_message = ""
        self._gs2 = b""
        self._verifier: Verifier

    def begin(self, method: str, data: bytes | None, applicant: Applicant) -> Outcome:
        """Take the client's first message: its user name and nonce."""
        try:
            bare = self._first(data)
        except _Wrong as error:
            return Refuse(why=str(error))
        entry = self._credentials.secret(KIND, self._user)
        self._verifier = parse_verifier(entry) if entry is not None else _decoy(self._user, self._decoy_key)
        first = f"r={self._nonce},s={_text(self._verifier.salt)},i={self._verifier.iterations}"
        self._auth_message = f"{bare},{first}"
        return Continue(first.encode())

    def step(self, data: bytes | None) -> Outcome:
        """Take the client's last message: its proof. An unknown user fails here, as a wrong password does."""
        try:
            without_proof, proof = self._final(data)
        except _Wrong as error:
            return Refuse(why=str(error))
        message = f"{self._auth_message},{without_proof}".encode()
        verifier = self._verifier
        signature = _hmac(verifier.stored_key, message)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(_hash(client_key), verifier.stored_key):  # a decoy's key matches no hash
            return Refuse(Reason.NOT_AUTHORIZED, "user name or password is wrong")
        return Accept(self._user, b"v=" + base64.b64encode(_hmac(verifier.server_key, message)))

    def _first(self, data: bytes | None) -> str:
        """Parse `n,[a=authzid],n=user,r=nonce[,extensions]`; return the part after the GS2 header."""
        text = _decoded(data)
        binding, _, rest = text.partition(",")
        authzid, comma, bare = rest.partition(",")
        if binding not in ("n", "y") or not comma or (authzid and not authzid.startswith("a=")):
            raise _Wrong("not a first SCRAM message, or it asks for channel binding")
        fields = bare.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
            raise _Wrong("the first SCRAM message has no user name and nonce")
        self._user = _name(fields[0][2:])
        if authzid and _name(authzid[2:]) != self._user:
            raise _Wrong("acting for another user is not possible")
        nonce = fields[1][2:]
        if not nonce or not nonce.isascii() or not nonce.isprintable():
            raise _Wrong("the nonce is not printable")
        self._nonce = nonce + self._make_nonce()
        self._gs2 = f"{binding},{authzid},".encode()
        return bare

    def _final(self, data: bytes | None) -> tuple[str, bytes]:
        """Parse `c=binding,r=nonce[,extensions],p=proof`; return what precedes the proof, and the proof."""
        without_proof, comma, proof = _decoded(data).rpartition(",p=")
        fields = without_proof.split(",")
        if not comma or len(fields) < 2 or fields[1] != f"r={self._nonce}":
            raise _Wrong("the last SCRAM message has no proof for this nonce")
        if fields[0] != f"c={_text(self._gs2)}":
            raise _Wrong("the channel binding is not that of the first message")
        try:
            raw = base64.b64decode(proof, validate=True)
        except (ValueError, binascii.Error):
            raw = b""
        if len(raw) != hashlib.sha256().digest_size:
            raise _Wrong("the proof is not 32 bytes in base64")
        return without_proof, raw


class _Wrong(Exception):
    """A message that breaks the RFC."""


def _decoded(data: bytes | None) -> str:
    if data is None or len(data) > _MAX_MESSAGE_BYTES:
        raise _Wrong("no SCRAM message, or one that is too long")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _Wrong("a SCRAM message is not UTF-8") from None


def _name(escaped: str) -> str:
    """Return a user name without its escapes: `=2C` is a comma, `=3D` an equals sign, any other `=` is an error."""
    name = escaped.replace("=2C", ",").replace("=3D", "=")
    if escaped.count("=") != escaped.count("=2C") + escaped.count("=3D") or not name:
        raise _Wrong("the user name is empty or wrongly escaped")
    try:
        return prepared(name)
    except UsageError as error:
        raise _Wrong(str(error)) from None


def _decoy(user: str, key: bytes) -> Verifier:
    """Return the verifier shown to an unknown user: its salt is always the same, like that of a known one."""
    salt = _hmac(key, user.encode())[:_SALT_BYTES]
    return Verifier(ITERATIONS, salt, bytes(32), bytes(32))


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
