"""What a cluster asks of the database, tables of a shard's tail that fence whoever is not its owner, and of peers.

Errors: `Fenced` if another owner has the shard, which is the end for this one; `Unavailable` if the answer is not known
(done, not done, or done and not on the standbys): the same is then to be settled; `StorageError` if it can't be done.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

from everlog.cluster.rows import TailRow

TABLES = 8  # of a shard, used in turn

Bytes = bytes | bytearray | memoryview


@dataclass(slots=True)
class TableFill:
    """How full one of a shard's tables is."""

    size: int = 0
    rows: int = 0
    end: int = 0  # the offset after its last record


@dataclass(frozen=True, slots=True)
class Takeover:
    """What a new owner finds: no bodies."""

    end: int  # where its first segment begins
    origins: dict[int, int]  # the last message number of each origin
    closed: dict[int, int]  # origins that are closed, with their final numbers
    fills: list[TableFill] = field(default_factory=lambda: [TableFill() for _ in range(TABLES)])
    last_table: int = 0  # that was written to last


class ShardRows(NamedTuple):
    """Rows of one shard, to be committed in one of its tables as the owner of an epoch."""

    shard: int
    epoch: int
    table: int
    rows: Sequence[TailRow]


class Outcome(IntEnum):
    """What became of a shard's rows in a transaction."""

    COMMITTED = 0
    FENCED = 1  # another owner has the shard: they are not there and never will be
    BUSY = 2  # the shard is being taken over just now: to be tried again


class TailTables(Protocol):
    """The tables of shards, as one broker writes them: one transaction at a time, of one shard or of several."""

    def take_over(self, shard: int, epoch: int, probe: int) -> Takeover:
        """Fence all owners before this epoch; the random probe tells a repeated takeover from another's."""

    def insert(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        """Commit rows of different shards in one transaction, of each shard all or none; say what became of each."""

    def settle(self, parts: Sequence[ShardRows]) -> list[Outcome]:
        """Commit rows that may be there already, by a transaction that writes in any case."""

    def close_origin(self, shard: int, origin: int, final: int, epoch: int) -> None:
        """Store the final number of an origin, of which nothing more is taken."""

    def interrupt(self) -> None:
        """Make a call that waits on another thread end soon, in doubt."""

    def close(self) -> None:
        """Let go of everything."""


class LinkKind(IntEnum):
    """What a broker says to another; numbers are never used for something else."""

    HELLO = 1  # who speaks, of which cluster, and which versions it understands
    PUBLISH = 2  # messages for a shard that the other one owns, numbered
    CONFIRM = 3  # up to which number they are committed
    OFFER = 4  # a batch that was committed, byte for byte
    UNKEPT = 5  # messages that nothing keeps, best effort
    ASK = 6  # a question, with its number and kind
    REPLY = 7  # the answer to a question
    PING = 8  # nothing: the link is there
    REFUSE = 9  # messages of a PUBLISH were not taken, and none will be
    OWNED = 10  # the speaker owns a shard, and has so much of the other's messages there
    GROUP_DEAL = 11  # what members of a shared group are given that are connected to the other one
    GROUP_NEWS = 12  # what became of that, and who the members are
    GROUP_SEATED = 13  # the speaker deals for a group, and has heard of the other one's members
    GROUP_MOVED = 14  # the speaker deals for some groups no more
    REACHES = 15  # whom the speaker has a connection with
    RELAY = 16  # pass this on to a broker that the speaker has no connection with
    RELAYED = 17  # this is of a broker that the hearer has no connection with
    RELEASE_SESSION = 32  # let go of a client id
    CLOSE_ORIGIN = 33  # take nothing more from a dead incarnation, and say its final number in a shard
    GROUP_JOIN = 34  # deal to these members
    GROUP_HELD = 35  # say what your members have of groups that the asker deals for from now on
    GROUP_GIVE = 36  # let go of so many groups, for which the asker will deal
    MOVED = 64  # the board has changed: look at it now
    CLIENTS = 65  # how many clients the speaker has


Answerer = Callable[[int, bytes], Awaitable[bytes]]  # of who asks, and what
Hearer = Callable[[int, int, bytes], None]  # of who says it, its number, and what
LinkWatcher = Callable[[int, bool], None]  # of an incarnation, and whether there is a link to it


class Peers(Protocol):
    """The other brokers, as far as they can be reached; used on the event loop's thread."""

    @property
    def living(self) -> Collection[int]: ...  # incarnations that there is a link to

    def ask(self, incarnation: int, kind: LinkKind, body: bytes) -> Awaitable[bytes]:
        """Return another's answer; raise `Unavailable` if it does not come: whether it was done is not known then."""

    def tell(self, incarnation: int, kind: LinkKind, body: bytes) -> None:
        """Say something that may get lost."""

    def answer(self, kind: LinkKind, call: Answerer) -> None:
        """Have questions of a kind answered, and what is told heard; an error there is the asker's `Unavailable`."""

    def watch(self, call: LinkWatcher) -> None:
        """Have a call made when a link is there, and when it is no more."""


class ShardLinks(Protocol):
    """The links as messages of shards use them: in order, and lost with the link; on the event loop's thread."""

    @property
    def living(self) -> Collection[int]: ...  # incarnations that there is a link to

    def send(self, incarnation: int, kind: LinkKind, number: int, body: Bytes, rest: Bytes = b"") -> bool:
        """Say something with a number; return False if there is no link. The body may be given in two pieces."""

    def offer(self, kind: LinkKind, number: int, body: Bytes, rest: Bytes = b"") -> int:
        """Say something to all that are not slow; return how many did not get it."""

    def hear(self, kind: LinkKind, call: Hearer) -> None:
        """Have a call made with the sender, the number and the body of what others tell."""

    def rest(self, call: Callable[[], None]) -> None:
        """Have a call made when all was told that came at once."""

    def watch(self, call: LinkWatcher) -> None:
        """Have a call made when a link is there, and when it is no more."""
