"""Writes what a file shows once more: after a failed sync the next one proves nothing, unless all is written again."""

from everlog.commitlog.ports import File

COPY_BYTES = 4 << 20


def write_again(file: File, start: int, end: int) -> None:
    """Write bytes again that may never have reached the disk, though they can still be read."""
    while start < end and (block := file.read_at(start, min(COPY_BYTES, end - start))):
        file.write_at(start, [block])
        start += len(block)
