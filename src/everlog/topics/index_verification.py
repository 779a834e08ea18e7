"""Check every byte of a topic index, going on behind what is damaged."""

from collections.abc import Callable, Iterable, Iterator

from everlog.topics import index_format as fmt
from everlog.topics.index_format import Column, CorruptTopicIndex, ReadAt, Ref, Refs

# What a part points to: more parts, each with the way to find what it points to in turn.
_Pending = tuple[Ref, "Callable[[bytes], Iterable[_Pending]]"]


def verify_index(read_at: ReadAt, *, label: str = "") -> Iterator[CorruptTopicIndex]:
    """Every damaged part of the index, with its position; nothing if each byte is as it was written."""
    try:
        _, directory = fmt.open_directory(read_at, label)
    except CorruptTopicIndex as error:
        yield error
        return
    pending: list[_Pending] = [(ref, _BEHIND.get(kind, _nothing)) for (kind, _), ref in directory.items()]
    while pending:
        ref, behind = pending.pop()
        try:
            packed = fmt.read_part(read_at, ref, "part", label)
        except CorruptTopicIndex as error:
            yield error
        else:
            pending.extend(behind(packed))


def _nothing(packed: bytes) -> Iterable[_Pending]:
    return ()


def _name_blocks(packed: bytes) -> Iterable[_Pending]:
    return ((ref, _nothing) for ref in Refs(packed))


def _batch_blocks(packed: bytes) -> Iterable[_Pending]:
    return ((ref, lambda block: _blobs(fmt.unpack_rows(block))) for ref in Refs(packed))


def _token_blocks(packed: bytes) -> Iterable[_Pending]:
    return ((ref, lambda block: _blobs(fmt.unpack_tokens(block).postings)) for ref in fmt.unpack_fence(packed).refs)


def _blobs(postings: Column) -> Iterable[_Pending]:
    for row in range(len(postings)):
        if postings[row][:1] == fmt.BLOB:
            yield fmt.unpack_ref(postings[row], 1), _nothing


_BEHIND = {fmt.NAMES: _name_blocks, fmt.BATCHES: _batch_blocks, fmt.LEVEL: _token_blocks}
