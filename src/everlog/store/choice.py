"""The topics of a sealed segment that some filters want; readers with the same filters share it."""

from dataclasses import dataclass

from everlog.base import TopicTable


@dataclass(frozen=True, slots=True)
class Choice:
    """What is wanted of a segment, which decides how it is read.

    Nothing: not at all. Everything, or a large part (`mask`): batch by batch. Less (`ids`): row by row.
    """

    is_empty: bool = False
    is_all: bool = False
    mask: bytearray | None = None  # a byte for each topic id
    ids: bytearray | None = None  # u32s
    table: TopicTable | None = None  # the names of `ids`
    total: int = 0  # rows of `ids`
