"""Recovery when a shard is opened for writing: find the end, make it durable, decide where to go on.

Only the last segment is read. A torn tail is cut if nothing whole follows it and the mark does not say that it was
committed; so is a torn group of a log that syncs, though some of its batches are whole. In every other case the bytes
stay as they are and the log goes on in a new segment. Offsets that were seen as committed are never given out again.
"""

from collections.abc import Callable
from dataclasses import dataclass

from everlog.commitlog import paths, segment_reader, side_file
from everlog.commitlog.catalog import Catalog, Segment
from everlog.commitlog.damage import Damage
from everlog.commitlog.mark import MARK_BYTES, Mark, MarkFile, read_marks
from everlog.commitlog.ports import Disk, File
from everlog.commitlog.scan import Scan
from everlog.commitlog.segment_format import HEADER_BYTES, PREVIOUS_SYNCED, Origin, SegmentHeader, read_header
from everlog.commitlog.segment_reader import SegmentReader
from everlog.commitlog.write_again import write_again


@dataclass(frozen=True, slots=True)
class Recovered:
    """The place where a log goes on."""

    end: int
    segment: Segment | None  # the segment to go on in, None to begin a new one
    position: int  # in that segment
    names: list[bytes]  # of that segment's topics
    publishers: list[bytes] | None  # of that segment, if its batches say who has published
    last_time: int
    layout: int
    mark: MarkFile


def clean_directory(disk: Disk, directory: str) -> list[str]:
    """Remove what an interrupted seal or removal left behind, and return the names that remain."""
    names = disk.list(directory)
    segments = set(paths.segment_bases(names))
    for name in names:
        stem = name.removesuffix(paths.TEMPORARY)
        unfinished = stem != name and any(paths.base_of(stem, suffix) is not None for suffix in (".log", ".idx"))
        side = paths.base_of(name, ".idx")
        if unfinished or (side is not None and side not in segments):
            disk.unlink(f"{directory}/{name}")
    return disk.list(directory)


def open_mark(
    disk: Disk, directory: str, names: list[str], random_bytes: Callable[[int], bytes], origin: Origin
) -> tuple[MarkFile, Mark, Mark]:
    """Return the mark file, made if need be, the mark in its first slot and its durable mark."""
    path = f"{directory}/{paths.MARK}"
    file = disk.open(path, write=True) if paths.MARK in names else disk.create(path)
    hint, durable = read_marks(file.read_at(0, MARK_BYTES), path)
    known = durable or hint
    salt = known.salt if known is not None else _salt_of_segments(disk, directory, names, origin)
    if salt is None:
        salt = int.from_bytes(random_bytes(8), "little")
    mark = MarkFile(file, durable, salt)
    mark.keep_again()
    disk.sync_directory(directory)
    return mark, hint or Mark(), durable or Mark()


def _salt_of_segments(disk: Disk, directory: str, names: list[str], origin: Origin) -> int | None:
    found = (segment_reader.header_of(disk, directory, base) for base in reversed(paths.segment_bases(names)))
    return next((header.salt for header in found if header is not None and not header.is_foreign(origin)), None)


def summarize(catalog: Catalog, base_offset: int, header: SegmentHeader | None) -> Segment:
    """Return what its header and a side file's first bytes say of a segment that has a successor."""
    segment = Segment(base_offset, previous_end=0 if header is None else header.previous_end)
    side = segment_reader.open_side(catalog.disk, paths.side_path(catalog.directory, base_offset), catalog.damage)
    if side is not None:
        summary = side.summary
        if summary.sealed and summary.base_offset == base_offset:
            segment.end_offset, segment.size_bytes = summary.end_offset, summary.covered
            segment.first_time, segment.last_time = summary.first_time, summary.last_time
            segment.sealed, segment.contents = True, summary.flags & ~side_file.SEALED
        side.close()
    return segment


def recover(
    catalog: Catalog, random_bytes: Callable[[int], bytes], now_us: int, not_below: int, *, syncs: bool
) -> Recovered:
    """Bring the directory of a log that `syncs` each commit, or does not, into order and say where the log goes on."""
    disk, directory = catalog.disk, catalog.directory
    names = clean_directory(disk, directory)
    mark, hint, durable = open_mark(disk, directory, names, random_bytes, catalog.origin)
    catalog.salt = mark.salt
    committed = max(hint.committed, durable.committed)
    listed = paths.segment_bases(names)
    sure = max((m for m in (hint, durable) if m.committed > m.segment), key=lambda m: m.committed, default=Mark())
    headers = segment_reader.own_headers(disk, directory, listed, sure._replace(salt=mark.salt), catalog.damage)
    segment_reader.check_owner(headers, directory, catalog.origin)
    segment_reader.check_epoch(headers, directory, catalog.origin)
    bases = list(headers)
    segments = [summarize(catalog, base, headers[base]) for base in bases[:-1]]
    end, last_time, position = 0, 0, HEADER_BYTES
    going_on: Segment | None = None
    topics: list[bytes] = []
    publishers: list[bytes] | None = None
    if bases:
        confirmed = max((m.position for m in (hint, durable) if m.synced and m.segment == bases[-1]), default=0)
        claimed = sure.committed if sure.segment <= bases[-1] else 0
        reader, scan, whole = _recover_last(catalog, bases[-1], committed, claimed, confirmed, now_us, syncs)
        _sync_before(catalog, segments, [*(headers[one.base_offset] for one in segments[1:]), reader.header])
        end, position, last_time = scan.offset, scan.position, scan.last_time
        last = Segment(bases[-1], scan.offset, *scan.index.times(), scan.position)
        last.reader, last.previous_end = reader, reader.header.previous_end
        segments.append(last)
        if not last_time and len(segments) > 1:
            last_time = catalog.describe(segments[-2]).last_time
        going_on = last if whole and reader.header.origin.epoch == catalog.origin.epoch else None
        topics = scan.table.all_names()
        publishers = None if scan.table.publishers is None else scan.table.publishers.all_names()
    catalog.replace(segments)
    catalog.note_gaps()
    if sure.committed > end and sure.segment >= max(bases, default=0):
        catalog.lost = sure._replace(position=position if sure.segment in headers else HEADER_BYTES)
    above = listed[-1] + 1 if listed and listed[-1] not in headers else 0  # no name is taken twice
    next_offset = max(end, committed, durable.reserved, not_below, above)
    layout = max(hint.layout, durable.layout) + 1
    if next_offset > end:
        going_on = None
        mark.keep(Mark(committed=next_offset, segment=next_offset, layout=layout, reserved=durable.reserved))
    if going_on is None:
        position, topics, publishers = HEADER_BYTES, [], None  # a segment stands alone
        if segments:
            segments[-1].reader = None
    return Recovered(next_offset, going_on, position, topics, publishers, last_time, layout, mark)


def _recover_last(
    catalog: Catalog, base: int, committed: int, claimed: int, confirmed: int, now_us: int, syncs: bool
) -> tuple[SegmentReader, Scan, bool]:
    """Scan the last segment, cut a torn tail, make the rest durable, and tell whether the log may go on in it."""
    disk, directory, damage = catalog.disk, catalog.directory, catalog.damage
    path = paths.segment_path(directory, base)
    file = disk.open(path, write=True)
    if read_header(file.read_at(0, HEADER_BYTES), path) is None and committed <= base:
        _begin_again(catalog, file, path, base, now_us)
    reader, scan = segment_reader.load(disk, directory, base, catalog.salt, damage)
    reader.file, scan.file = file, file
    size = file.size()
    sealed = reader.side is not None and reader.side.summary.sealed
    header_whole = read_header(file.read_at(0, HEADER_BYTES), path) is not None
    if scan.position < size:
        scan.run(size, complete=False)
    if syncs and scan.torn_at is not None and scan.torn_at >= confirmed:
        shorter = segment_reader.load(disk, directory, base, catalog.salt, damage)
        shorter[1].run(scan.torn_at, complete=False)
        if shorter[1].offset >= committed:  # so nobody was told of what follows: a group that was not written whole
            reader, scan = shorter
            reader.file, scan.file = file, file
    whole = header_whole and not scan.damage and not sealed
    if committed > scan.offset and committed > base:
        lost = Damage(path, scan.position, "committed batches are missing or damaged", scan.offset, claimed)
        scan.damage += [lost] if claimed > scan.offset else []
        whole = False
    else:
        file.truncate(scan.position)  # also where it ends already: the sync of an earlier cut may have failed
    write_again(file, confirmed, scan.position)
    file.sync()
    disk.sync_directory(directory)
    segment_reader.finish(reader, scan, scan.position, damage)
    return reader, scan, whole


def _begin_again(catalog: Catalog, file: File, path: str, base: int, now_us: int) -> None:
    """Start a segment again whose creation was torn: nothing in it was committed; any batches in it are kept."""
    scan = Scan(file, path, catalog.salt, base)
    scan.run(file.size(), complete=False)
    if not len(scan.index) and not scan.damage:
        file.truncate(0)
    file.write_at(0, [SegmentHeader(base, now_us, catalog.salt, origin=catalog.origin).to_bytes()])


def _sync_before(catalog: Catalog, segments: list[Segment], following: list[SegmentHeader | None]) -> None:
    """Sync earlier segments that were written without syncs and are not sealed; each has a header that follows it."""
    for segment, header in zip(segments, following, strict=False):
        if segment.sealed or (header is not None and header.flags & PREVIOUS_SYNCED):
            continue
        file = catalog.disk.open(paths.segment_path(catalog.directory, segment.base_offset), write=True)
        try:
            write_again(file, 0, file.size())
            file.sync()
        finally:
            file.close()
