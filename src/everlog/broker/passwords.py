"""Users and their argon2id hashes: the file, and the check of a password against it.

A hash is slow on purpose (some 20 ms and 19 MiB here), so `check` belongs in a thread; `recall` answers at once for a
password that was right a moment ago, which is what a reconnect storm asks. State: the cache, guarded by a lock.
"""

import contextlib
import hashlib
import os
import secrets
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import argon2

from everlog.base import StorageError, UsageError

CACHE_ENTRIES = 4096  # verified passwords remembered; the least recently used goes first
MAX_USER_BYTES = 256

# The OWASP parameters for argon2id: 19 MiB, two passes, one lane, so that a few checks at once do not fill the memory.
HASHER = argon2.PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)


class Authenticator:
    """Checks passwords; safe to call from many threads."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = dict(users)
        self._key = secrets.token_bytes(32)
        self._decoy = HASHER.hash(secrets.token_bytes(16))  # an unknown user costs what a known one does
        self._verified: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._users)

    def recall(self, user: str, password: bytes) -> bool:
        """Whether this very pair was found right before; False means unknown."""
        mark = self._mark(user, password)
        with self._lock:
            if mark not in self._verified:
                return False
            self._verified.move_to_end(mark)
            return True

    def check(self, user: str, password: bytes) -> bool:
        """Whether the password is the user's: slow, so run it in a thread."""
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
        """A keyed hash of the pair: the cache holds no password, and nothing that outlives the process."""
        name = user.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(len(name).to_bytes(4, "big") + name + password, key=self._key, digest_size=32).digest()


def read_passwords(path: str | Path) -> dict[str, str]:
    """Every user and hash of a file."""
    return parse_passwords(_read(Path(path)), str(path))


def parse_passwords(text: str, path: str) -> dict[str, str]:
    """Lines of `user:$argon2id$…`; empty lines and those that begin with `#` are skipped."""
    users: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, hashed = line.partition(":")
        if not colon:
            raise UsageError(f"{path}:{number}:{len(line) + 1}: no colon behind the user name", hint="user:$argon2id$…")
        if problem := _bad_user(user):
            raise UsageError(f"{path}:{number}:1: {problem}")
        if user in users:
            raise UsageError(f"{path}:{number}:1: user {user!r} a second time", hint="delete one of the lines")
        _check_hash(hashed.strip(), user, f"{path}:{number}:{len(user) + 2}")
        users[user] = hashed.strip()
    return users


def set_password(path: str | Path, user: str, password: bytes) -> bool:
    """Add a user or change the password; whether the user is new. The file is replaced whole, readable by its owner."""
    if problem := _bad_user(user):
        raise UsageError(problem)
    if not password:
        raise UsageError("an empty password", hint="give at least one character")
    lines, at = _lines_and_place(Path(path), user)
    is_new = at == len(lines)
    lines[at : at + 1] = [f"{user}:{HASHER.hash(password)}"]
    _replace(Path(path), lines)
    return is_new


def delete_user(path: str | Path, user: str) -> None:
    """Take a user out of the file."""
    lines, at = _lines_and_place(Path(path), user)
    if at == len(lines):
        raise UsageError(f"{path}: no user {user!r}", hint="names are case-sensitive")
    del lines[at]
    _replace(Path(path), lines)


def _lines_and_place(path: Path, user: str) -> tuple[list[str], int]:
    """The file's lines, comments too, and which one is the user's: the last and one more when there is none."""
    text = _read(path) if path.exists() else ""
    if not text:
        return [], 0
    parse_passwords(text, str(path))
    lines = text.removesuffix("\n").split("\n")
    return lines, next((n for n, line in enumerate(lines) if line.startswith(f"{user}:")), len(lines))


def _replace(path: Path, lines: list[str]) -> None:
    """Write beside, sync, rename: a reader sees the old file or the new one. The owner stays the same."""
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
        return "an empty user name"
    if ":" in user or user.startswith("#") or user != user.strip() or not user.isprintable():
        return f"user name {user!r} has a colon, '#' in front, outer spaces or control characters"
    if len(user.encode("utf-8", "replace")) > MAX_USER_BYTES:
        return f"user name of more than {MAX_USER_BYTES} bytes"
    return ""


def _check_hash(hashed: str, user: str, where: str) -> None:
    hint = f"set it anew: everlog passwd FILE {user}"
    if not hashed.startswith("$argon2id$"):
        raise UsageError(f"{where}: the hash of {user!r} is not argon2id", hint=hint)
    try:
        argon2.extract_parameters(hashed)
    except argon2.exceptions.InvalidHashError:
        raise UsageError(f"{where}: the hash of {user!r} is damaged", hint=hint) from None
