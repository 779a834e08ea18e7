"""A whole segment file as bytes, such as an object in a bucket: its header and its batches."""

from collections.abc import Sequence
from typing import TypeVar

from everlog.base import StorageError
from everlog.commitlog.segment_format import FRAME_BYTES, HEADER_BYTES, Frame, SegmentHeader, read_frame, read_header

Whole = TypeVar("Whole", bytes, memoryview)


def read_segment(data: Whole, label: str) -> tuple[SegmentHeader, list[tuple[int, int, Whole]]]:
    """Return a segment's header and its batches, each with its base offset and count; what is torn at the end is not.

    Only the frames are checked, not the batches. Parts of a view are views.
    """
    header = read_header(data[:HEADER_BYTES], label)
    if header is None:
        raise StorageError(f"{label} is no segment", hint="restore it from a backup")
    batches = []
    at = HEADER_BYTES
    while (frame := read_frame(data, at, at, header.salt)) is not None and frame.end <= len(data):
        batches.append((frame.base_offset, frame.records, data[at + FRAME_BYTES : frame.end]))
        at = frame.end
    return header, batches


def write_segment(header: SegmentHeader, batches: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Return a segment of batches, each with its base offset and count, as a log writes them that is not synced."""
    parts, at = [header.to_bytes()], HEADER_BYTES
    for base, count, body in batches:
        frame = Frame(at, base, len(body), count, after_sync=False)
        parts += (frame.to_bytes(header.salt), body)
        at = frame.end
    return b"".join(parts)
