"""The language of ACL files: one rule a line, `[user NAME] [client ID] ACTION FILTER`, and errors by line and column.

`%u` and `%c` in a filter stand for the client's user name and client id. A value that would change the shape of the
filter (with `/`, `+`, `#` or a leading `$`, or empty) never widens what is allowed and never narrows what is denied.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from everlog.base import PeerError, UsageError
from everlog.topics import Filter, parse_filter

READ, WRITE, DENY, REPLAY = 1, 2, 4, 8
ACTIONS = {"read": READ, "write": WRITE, "readwrite": READ | WRITE, "replay": REPLAY}
SUBJECTS = ("everyone", "anonymous", "user", "client")
EXAMPLE = "user alice readwrite home/#"

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"(?=\s|$)|([^\s"]\S*)')
_PLACE = re.compile(r"%(.?)")


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: whom it is for (None is anybody), what it allows or denies, and for which topics."""

    user: re.Pattern[str] | None
    client: re.Pattern[str] | None
    only_anonymous: bool
    action: int
    pattern: str
    line: int

    @property
    def is_deny(self) -> bool:
        """Whether the rule denies."""
        return bool(self.action & DENY)

    def is_for(self, user: str | None, client_id: str) -> bool:
        """Return whether the rule applies to this client."""
        if self.only_anonymous and user is not None:
            return False
        if self.user is not None and (user is None or self.user.fullmatch(user) is None):
            return False
        return self.client is None or self.client.fullmatch(client_id) is not None

    def filter_for(self, user: str | None, client_id: str) -> Filter | None:
        """Return the filter with the client's own values, or None if they don't fit."""
        levels: list[str] = []
        for level in self.pattern.split("/"):
            filled = _fill(level, user, client_id, is_own=not levels and not self.is_deny)
            if filled is None:
                if not self.is_deny or not levels:
                    return None
                levels.append("#")  # denies all that the value could have meant
                break
            levels.append(filled)
        try:
            return parse_filter("/".join(levels))
        except PeerError:  # too long with the values in it
            return None


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    column: int


def read_rules(path: str | Path) -> tuple[Rule, ...]:
    """Return the rules of a file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}", hint="it must be a readable UTF-8 file") from error
    return parse_rules(text, str(path))


def parse_rules(text: str, path: str) -> tuple[Rule, ...]:
    """Return a rule for each line; empty lines and those that begin with `#` are skipped."""
    rules = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            rules.append(_Line(line, f"{path}:{number}", number).rule())
    return tuple(rules)


class _Line:
    """A line of the file, parsed from left to right."""

    def __init__(self, line: str, where: str, number: int) -> None:
        self.line, self.where, self.number = line, where, number
        self.words = list(self._split())
        self.at = 0

    def rule(self) -> Rule:
        """Return the rule that the line is."""
        user = client = None
        subjects: set[str] = set()
        while self.at < len(self.words) and self.words[self.at].text in SUBJECTS:
            word = self._next("")
            if word.text in subjects or ("everyone" in (*subjects, word.text) and subjects):
                self._fail(word, f"{word.text} does not go with what precedes it", f"write it like: {EXAMPLE}")
            subjects.add(word.text)
            if word.text == "user":
                user = _glob(self._next("a user name").text)
            elif word.text == "client":
                client = _glob(self._next("a client id").text)
        if {"user", "anonymous"} <= subjects:
            self._fail(self.words[0], "an anonymous client has no user name", "write two rules")
        if not subjects:
            word = self._next("a rule")
            self._fail(word, f"{word.text!r} is not a subject", f"begin with one of {', '.join(SUBJECTS)}")
        action = self._action()
        pattern = self._next("a topic filter")
        self._check_pattern(pattern)
        if self.at < len(self.words):
            self._fail(self.words[self.at], "more text after the filter", 'put a filter with spaces in quotes: "a b/#"')
        return Rule(user, client, "anonymous" in subjects, action, pattern.text, self.number)

    def _action(self) -> int:
        word = self._next("read, write, readwrite, replay or deny")
        if word.text in ACTIONS:
            return ACTIONS[word.text]
        if word.text != "deny":
            self._fail(word, f"{word.text!r} is not an action", "use one of read, write, readwrite, replay, deny")
        rest = len(self.words) - self.at
        if rest > 1 and self.words[self.at].text in ACTIONS:  # `deny read a/b`; `deny read` alone is the topic "read"
            return DENY | ACTIONS[self._next("").text]
        return DENY | READ | WRITE | REPLAY

    def _check_pattern(self, word: _Word) -> None:
        for found in _PLACE.finditer(word.text):
            if found[1] not in ("u", "c"):
                column = word.column + found.start()
                self._fail(_Word("", column), f"{found[0]!r} is neither %u nor %c", "a filter has no other use of %")
        try:
            parse_filter(_PLACE.sub("x", word.text), allow_shared=False)
        except PeerError as error:
            self._fail(
                word, f"{word.text!r} is not a topic filter: {error.message}", "write it like home/+/temperature"
            )

    def _next(self, expected: str) -> _Word:
        if self.at == len(self.words):
            self._fail(_Word("", len(self.line.rstrip()) + 1), f"{expected} is missing", f"write it like: {EXAMPLE}")
        self.at += 1
        return self.words[self.at - 1]

    def _split(self) -> Iterator[_Word]:
        at = 0
        while rest := self.line[at:].lstrip():
            at = len(self.line) - len(rest)
            found = _TOKEN.match(self.line, at)
            if found is None:
                self._fail(_Word("", at + 1), "a quoted text does not end", 'close it with " and a space')
            quoted, bare = found.groups()
            yield _Word(bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted), at + 1)
            at = found.end()

    def _fail(self, word: _Word, message: str, hint: str) -> Never:
        raise UsageError(f"{self.where}:{word.column}: {message}", hint=hint)


def _glob(text: str) -> re.Pattern[str]:
    """Return the pattern of a name in which `*` stands for anything."""
    return re.compile(".*".join(re.escape(part) for part in text.split("*")), re.DOTALL)


def _fill(level: str, user: str | None, client_id: str, *, is_own: bool) -> str | None:
    """Return a level with its values, or None if one of them would be more than a part of a level."""
    values = {"u": user or "", "c": client_id}
    for found in _PLACE.finditer(level):
        value = values[found[1]]
        if not value or any(character in value for character in "/+#\0"):
            return None
        if is_own and found.start() == 0 and value.startswith("$"):  # topics such as $SYS belong to no client
            return None
    return _PLACE.sub(lambda found: values[found[1]], level)
