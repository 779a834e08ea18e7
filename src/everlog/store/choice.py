"""The topics of a sealed segment that some filters want, as readers that ask alike share it."""

from dataclasses import dataclass

from everlog.base import TopicTable


@dataclass(frozen=True, slots=True)
class Choice:
    """What is wanted, and so how the segment is read.

    Nothing: not at all. Everything, or a large part (`topic_mask`): the plain way. Less (`ids`): rows one by one.
    """

    is_empty: bool = False
    is_all: bool = False
    wanted: bytearray | None = None  # a byte for each topic id
    ids: bytearray | None = None  # u32s
    table: TopicTable | None = None  # the names of `ids`
    total: int = 0  # rows of `ids`
