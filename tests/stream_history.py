"""A history of what callers of streams were told, and the check that it can be true.

Whoever runs a test with faults notes every answered write, every read and every feed event. `check` then holds them
together: nothing that was acknowledged at `fsync` or better is lost unless somebody may have deleted or replaced it; no
(stream, epoch, seq) had two contents at one position; a compare-and-set was won by one; no feed crossed an epoch
without saying so.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from everlog.streams import EpochBegan, FeedEvent, KeySet, Level, MessageSet, StoredMessage


@dataclass(frozen=True)
class Write:
    """A message that was acknowledged."""

    epoch: int
    position: int
    seq: int
    value: bytes | None
    level: Level


@dataclass
class History:
    """What was told to callers."""

    writes: dict[str, list[Write]] = field(default_factory=lambda: defaultdict(list))
    forgiven: set[tuple[str, int]] = field(default_factory=set)  # (stream, seq) that somebody may have changed since
    contents: dict[tuple[str, int, int, int], set[bytes | None]] = field(default_factory=lambda: defaultdict(set))
    winners: dict[tuple[str, str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    feeds: dict[tuple[str, str], FeedEvent] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def wrote(self, stream: str, write: Write) -> None:
        """Note an acknowledged message; the epoch is 0 if it is not known."""
        self.writes[stream].append(write)
        if write.epoch:
            self._content(stream, write.epoch, write.seq, write.position, write.value)

    def may_change(self, stream: str, seqs: Iterable[int]) -> None:
        """Note that somebody asked to delete or replace messages, whatever came of it."""
        self.forgiven.update((stream, seq) for seq in seqs)

    def won(self, stream: str, key: str, expected: int, revision: int) -> None:
        """Note a compare-and-set that was acknowledged."""
        self.winners[stream, key, expected].append(revision)

    def event(self, follower: str, event: FeedEvent) -> None:
        """Note an event that a follower took in as the next one."""
        before = self.feeds.get((follower, event.stream))
        if before is not None:
            if event.previous != before.position:
                self.faults.append(f"{follower} went from {before.position} to {event.position} past {event.previous}")
            if event.epoch != before.epoch and not any(isinstance(one, EpochBegan) for one in event.changes):
                self.faults.append(f"{follower} crossed into epoch {event.epoch} at {event.position} unawares")
        self.feeds[follower, event.stream] = event
        for change in event.changes:
            if isinstance(change, MessageSet):
                one = change.message
                self._content(event.stream, event.epoch, one.seq, event.position, one.value)
            elif isinstance(change, KeySet):
                entry = change.entry
                self._content(event.stream, event.epoch, entry.revision, event.position, entry.value)

    def begins(self, follower: str, stream: str) -> None:
        """Note that a follower begins anew with a snapshot."""
        self.feeds.pop((follower, stream), None)

    def _content(self, stream: str, epoch: int, seq: int, position: int, value: bytes | None) -> None:
        self.contents[stream, epoch, seq, position].add(value)

    def check(self, stream: str, found: Iterable[StoredMessage]) -> list[str]:
        """Return what can't be true, given all messages that a stream has in the end."""
        faults = list(self.faults)
        have = {message.seq: message for message in found}
        for write in self.writes[stream]:
            if write.level is Level.MEMORY or (stream, write.seq) in self.forgiven:
                continue
            kept = have.get(write.seq)
            if kept is None or kept.value != write.value or kept.position != write.position:
                faults.append(f"{stream} has lost message {write.seq} of position {write.position}")
        for (name, epoch, seq, position), values in self.contents.items():
            if name == stream and len(values) > 1:
                faults.append(f"{name}: seq {seq} of epoch {epoch} at {position} had {len(values)} contents")
        for (name, key, expected), revisions in self.winners.items():
            if name == stream and len(set(revisions)) > 1:
                faults.append(f"{name}: {key} at revision {expected} was won by {revisions}")
        return faults
