"""A whole segment file as bytes, such as an object in a bucket: its header and its batches."""

from everlog.base import StorageError
from everlog.commitlog.segment_format import FRAME_BYTES, HEADER_BYTES, SegmentHeader, read_frame, read_header


def read_segment(data: bytes, label: str) -> tuple[SegmentHeader, list[tuple[int, int, bytes]]]:
    """Return a segment's header and its batches, each with its base offset and count; what is torn at the end is not.

    Only the frames are checked, not the batches.
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
