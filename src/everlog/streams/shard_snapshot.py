"""The streams of a state shard as of one position, taken beside its owner, without a lock and without asking it.

What a stream is at that position comes from its row in the catalogue and the records behind it. Its content is made
from a copy of its file, which the journal brings to the position, whether the file is behind it or beyond it by then.
Never in the owner's own process: closing a copied file there would end the locks that the owner has on it.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from everlog.base import Unavailable, UsageError
from everlog.streams.effects import NO_POSITION, DropAll, DropKeys, PutKey, Record, SetConfig, decode_record
from everlog.streams.shard_places import ReadableJournal, ShardPlace, SnapshotStream, Wants
from everlog.streams.values import Kind

_ATTEMPTS = 10  # to find files and a journal that fit together


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """The streams of a shard that were asked for, as they are after all records below `end`."""

    place: ShardPlace
    end: int
    whole: int  # records below it are in files
    streams: tuple[SnapshotStream, ...]


def take_snapshot(place: ShardPlace, wants: Wants, kind: Kind, end: int | None = None) -> ShardSnapshot:
    """Return the streams of a kind whose names are wanted, as they are committed now, or after all records below `end`.

    An earlier state is known as far as the journal goes back.
    """
    if not place.is_there():
        return ShardSnapshot(place, 0, 0, ())
    for _ in range(_ATTEMPTS):
        whole, known = place.known(wants)
        with closing(place.open_journal()) as journal:
            if whole < journal.start:
                continue  # the journal was trimmed in between: what is beside it knows by now
            last = journal.committed
            if end is not None and end > last:
                raise UsageError(f"the shard ends at position {last}, before {end}", hint="leave it out for the end")
            _replay(known, journal, whole, last, wants)
            # the copy of a local journal in a bucket may be behind what is packed
            ahead = {name: one.born < last for name, one in known.items() if one.packed and one.packed.end > last}
            _be_as_of(known, journal, last, ahead)
            if end is not None and end < last:
                _go_back(known, journal, end, wants)
            there = [one for _, one in sorted(known.items()) if one.kind is kind and not one.is_hidden]
            return ShardSnapshot(place, last if end is None else end, whole, tuple(there))
    raise Unavailable("the shard changes faster than it can be read", hint="try again")


def _replay(known: dict[str, SnapshotStream], journal: ReadableJournal, first: int, end: int, wants: Wants) -> None:
    """Bring streams to a position."""
    for position, name, effect in journal.read(first, end):
        if wants(name):
            after = after_record(known.get(name), name, position, decode_record(effect))
            if after is None:
                known.pop(name, None)
            else:
                known[name] = after


def after_record(before: SnapshotStream | None, name: str, position: int, record: Record) -> SnapshotStream | None:
    """Return a stream after a record, or None if it is gone."""
    stream = before or SnapshotStream(name, Kind.STREAM, NO_POSITION, 0, 0, 0)
    if record.previous == NO_POSITION and record.is_visible:
        stream = replace(stream, born=position)
    stream = replace(stream, last_seq=record.last_seq, messages=record.messages, bytes=record.bytes)
    for effect in record.effects:
        if isinstance(effect, DropAll) and effect.is_removed:
            return None
        if isinstance(effect, SetConfig):
            stream = replace(stream, kind=effect.kind, is_hidden=effect.is_hidden)
        elif isinstance(effect, PutKey | DropKeys):
            stream = replace(stream, kind=Kind.KV)
    return stream


def _go_back(known: dict[str, SnapshotStream], journal: ReadableJournal, end: int, wants: Wants) -> None:
    """Bring the streams that changed from a position on to what they were there."""
    if end < journal.start:
        raise UsageError(
            f"the journal begins at position {journal.start}, behind {end}", hint="give a later position, or none"
        )
    changed: dict[str, bool] = {}  # whether they were there
    for _, name, effect in journal.read(end, journal.committed):
        if wants(name) and name not in changed:
            record = decode_record(effect)
            changed[name] = not (record.previous == NO_POSITION and record.is_visible)
    _be_as_of(known, journal, end, changed)


def _be_as_of(
    known: dict[str, SnapshotStream], journal: ReadableJournal, end: int, changed: Mapping[str, bool]
) -> None:
    """Make streams what they were at a position, by their last records before it; `changed` says if they were there."""
    if not changed:
        return
    before: dict[str, SnapshotStream] = {}
    gone: set[str] = set()
    for position, name, effect in journal.read(journal.start, end):
        if name in changed:
            start = before.get(name)
            if start is None and name in known and known[name].born < end:
                start = known[name]
            after = after_record(start, name, position, decode_record(effect))
            before.pop(name, None)
            gone.discard(name)
            if after is None:
                gone.add(name)
            else:
                before[name] = after
    for name, was_there in changed.items():
        known.pop(name, None)
        if name in before:
            known[name] = before[name]
        elif was_there and name not in gone:
            raise Unavailable(
                f"{name} was changed at position {end} or later, and the journal has nothing before that any more",
                hint="try again, with a later position or none",
            )
