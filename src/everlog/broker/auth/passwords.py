"""The password file, with argon2id hashes and SCRAM entries, and the check of a password against it.

A hash is slow on purpose (some 20 ms and 19 MiB here), so `check` belongs in a thread; `recall` answers at once for a
password that was right before, as in a reconnect storm. State: the cache, guarded by a lock.
"""

import contextlib
import hashlib
import os
import secrets
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import argon2

from everlog.base import StorageError, UsageError
from everlog.broker.auth.scram import KIND as SCRAM
from everlog.broker.auth.scram import make_verifier, parse_verifier, prepared

ARGON2ID = "argon2id"
CACHE_ENTRIES = 4096  # verified passwords remembered; the least recently used goes first
MAX_USER_BYTES = 256

# The OWASP parameters for argon2id: 19 MiB, two passes, one lane, so that a few checks at once do not fill the memory.
HASHER = argon2.PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)


@dataclass(frozen=True, slots=True)
class PasswordFile:
    """The content of the file: password hashes by user, and entries for authentication methods by kind and user."""

    hashes: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def secret(self, kind: str, user: str) -> str | None:
        """Return the user's entry of a kind as it is in the file, or None if there is none."""
        return self.entries.get((kind, user))

    def has(self, kind: str) -> bool:
        """Return whether any user has an entry of this kind."""
        return any(one == kind for one, _ in self.entries)


class Passwords:
    """The password check; safe to call from many threads."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = dict(users)
        self._key = secrets.token_bytes(32)
        self._decoy = HASHER.hash(secrets.token_bytes(16))  # an unknown user costs what a known one does
        self._verified: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, user: str, password: bytes) -> bool:
        """Return whether this pair was found right before; False means unknown."""
        mark = self._mark(user, password)
        with self._lock:
            if mark not in self._verified:
                return False
            self._verified.move_to_end(mark)
            return True

    def check(self, user: str, password: bytes) -> bool:
        """Return whether the password is the user's; slow, so run it in a thread."""
        if self.recall(user, password):
            return True
        known = self._users.get(user)
        try:
            HASHER.verify(self._decoy if known is None else known, password)
        except argon2.exceptions.VerificationError:
            return False
        if known is None:
            return False
        with self._lock:
            self._verified[self._mark(user, password)] = None
            if len(self._verified) > CACHE_ENTRIES:
                self._verified.popitem(last=False)
        return True

    def _mark(self, user: str, password: bytes) -> bytes:
        """Return a keyed hash of the pair, so that the cache holds no password."""
        name = user.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(len(name).to_bytes(4, "big") + name + password, key=self._key, digest_size=32).digest()


def read_passwords(path: str | Path) -> PasswordFile:
    """Return the content of a password file."""
    return parse_passwords(_read(Path(path)), str(path))


def parse_passwords(text: str, path: str) -> PasswordFile:
    """Parse lines of `user:$kind$…`, a user once for each kind; empty lines and `#` comments are skipped."""
    hashes: dict[str, str] = {}
    entries: dict[tuple[str, str], str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, rest = line.partition(":")
        if not colon:
            raise UsageError(f"{path}:{number}:{len(line) + 1}: no colon after the user name", hint="user:$argon2id$…")
        if problem := _bad_user(user):
            raise UsageError(f"{path}:{number}:1: {problem}")
        entry = rest.strip()
        kind = _check_entry(entry, user, f"{path}:{number}:{len(user) + 2}")
        if (kind, user) in entries or (kind == ARGON2ID and user in hashes):
            raise UsageError(
                f"{path}:{number}:1: user {user!r} is listed a second time", hint="delete one of the lines"
            )
        if kind == ARGON2ID:
            hashes[user] = entry
        else:
            entries[kind, user] = entry
    return PasswordFile(hashes, entries)


def set_password(path: str | Path, user: str, password: bytes, *, scram: bool = False) -> bool:
    """Add a user or change the password; return whether the user is new. The file is replaced, readable by its owner.

    With `scram`, or if the user has a SCRAM entry, that is written too: no entry keeps the old password.
    """
    if problem := _bad_user(user):
        raise UsageError(problem)
    if not password:
        raise UsageError("the password is empty", hint="give at least one character")
    lines, places = _lines_and_places(Path(path), user)
    entries = [HASHER.hash(password)]
    if scram or any(lines[at].removeprefix(f"{user}:").startswith(f"${SCRAM}$") for at in places):
        entries.append(_scram_entry(user, password))
    at = places[0] if places else len(lines)
    lines = [line for number, line in enumerate(lines) if number not in places]
    lines[at:at] = [f"{user}:{entry}" for entry in entries]
    _replace(Path(path), lines)
    return not places


def delete_user(path: str | Path, user: str) -> None:
    """Remove a user from the file."""
    lines, places = _lines_and_places(Path(path), user)
    if not places:
        raise UsageError(f"{path}: no user {user!r}", hint="names are case-sensitive")
    _replace(Path(path), [line for number, line in enumerate(lines) if number not in places])


def _scram_entry(user: str, password: bytes) -> str:
    try:
        if prepared(user) != user:
            raise UsageError("the user name is not in its normal form")
        return str(make_verifier(password.decode()))
    except UnicodeDecodeError:
        raise UsageError("a password for SCRAM must be UTF-8") from None
    except UsageError as error:
        raise UsageError(f"no SCRAM entry for {user!r}: {error.message}", hint="choose another") from None


def _lines_and_places(path: Path, user: str) -> tuple[list[str], list[int]]:
    """Return the file's lines, comments too, and the indexes of the user's."""
    text = _read(path) if path.exists() else ""
    if not text:
        return [], []
    parse_passwords(text, str(path))
    lines = text.removesuffix("\n").split("\n")
    return lines, [number for number, line in enumerate(lines) if line.startswith(f"{user}:")]


def _replace(path: Path, lines: list[str]) -> None:
    """Write a new file, sync it and rename it, so that a reader sees the old file or the new one; keep the owner."""
    target = Path(os.path.realpath(path))
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # 0600 from the start
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
                file.flush()
                if target.exists():
                    with contextlib.suppress(PermissionError):  # not root: the file becomes ours
                        os.fchown(file.fileno(), target.stat().st_uid, target.stat().st_gid)
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise StorageError(f"{path} can't be written: {error.strerror}", hint="check the directory's owner") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}", hint="create it: everlog passwd FILE USER") from error


def _bad_user(user: str) -> str:
    if not user:
        return "the user name is empty"
    if ":" in user or user.startswith("#") or user != user.strip() or not user.isprintable():
        return f"user name {user!r} has a colon, a leading '#', outer spaces or control characters"
    if len(user.encode("utf-8", "replace")) > MAX_USER_BYTES:
        return f"the user name is longer than {MAX_USER_BYTES} bytes"
    return ""


def _check_entry(entry: str, user: str, where: str) -> str:
    """Return the kind of an entry; UsageError if it is damaged."""
    hint = f"set it anew: everlog passwd FILE {user}"
    if entry.startswith(f"${SCRAM}$"):
        try:
            parse_verifier(entry)
        except UsageError as error:
            raise UsageError(
                f"{where}: {error.message}", hint=f"set it anew: everlog passwd --scram FILE {user}"
            ) from None
        return SCRAM
    if not entry.startswith(f"${ARGON2ID}$"):
        raise UsageError(f"{where}: the hash of {user!r} is not argon2id", hint=hint)
    try:
        argon2.extract_parameters(entry)
    except argon2.exceptions.InvalidHashError:
        raise UsageError(f"{where}: the hash of {user!r} is damaged", hint=hint) from None
    return ARGON2ID
