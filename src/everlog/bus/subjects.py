"""The subjects of the persistence service: `everlog/p/<shard>/<right>/<name…>`, so that a bus's own rules say who may.

A right is `r` (read), `w` (write) or `a` (administer); a name is one of a stream or key-value store, whose levels are
levels of the subject. Servers tell changes on `everlog/p/<shard>/f/<name…>`, and that they serve a shard from now on
on `everlog/p/<shard>/up`. `everlog/p/hello` asks every server who it is; on `everlog/p/moves` servers tell each other
to look who owns what.
"""

from functools import lru_cache
from typing import NamedTuple

from everlog.base import UsageError
from everlog.store import shard_of

PREFIX = "everlog/p"
HELLO = f"{PREFIX}/hello"
MOVES = f"{PREFIX}/moves"
READ, WRITE, ADMINISTER = RIGHTS = ("r", "w", "a")


class Place(NamedTuple):
    """What a subject of a request says."""

    shard: int
    right: str
    name: str


@lru_cache(100_000)
def shard_of_name(name: str, shards: int) -> int:
    """Return the state shard of a name: a hash of the name alone, so that it is always the same everywhere."""
    return shard_of(name.encode(), shards)


@lru_cache(100_000)
def request_subject(shard: int, right: str, name: str) -> str:
    """Return the subject for requests about a name."""
    return f"{PREFIX}/{shard}/{right}/{name}"


@lru_cache(100_000)
def feed_subject(shard: int, name: str) -> str:
    """Return the subject on which changes of a name are told."""
    return f"{PREFIX}/{shard}/f/{name}"


def up_subject(shard: int) -> str:
    """Return the subject on which a server says that it serves a shard from now on."""
    return f"{PREFIX}/{shard}/up"


def request_patterns(shard: int) -> list[str]:
    """Return what the owner of a shard subscribes to."""
    return [f"{PREFIX}/{shard}/{right}/#" for right in RIGHTS]


@lru_cache(100_000)
def parse_request(subject: str) -> Place:
    """Return what a request's subject says; raises UsageError if it is none."""
    parts = subject.split("/", 4)
    if len(parts) < 5 or not parts[2].isdecimal() or not parts[2].isascii() or parts[3] not in RIGHTS:
        raise UsageError(f"{subject[:80]!r} is not a subject of a request")
    return Place(int(parts[2]), parts[3], parts[4])
