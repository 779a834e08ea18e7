"""A journal of a state shard over numbered objects of a bucket or a shared directory."""

from collections.abc import Callable

from everlog.tiering.group_journal import GROUP_BYTES, GroupJournal
from everlog.tiering.journal_writer import JournalWriter, wall_clock_us
from everlog.tiering.ports import Bucket

DIRECTORY_GROUP_S = 0.02
BUCKET_GROUP_S = 0.25


class ObjectJournal(GroupJournal):
    """A journal whose groups are objects that are created once."""

    def __init__(
        self,
        bucket: Bucket,
        folder: str,
        epoch: int,
        *,
        group_s: float = BUCKET_GROUP_S,
        object_bytes: int = GROUP_BYTES,
        now_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        writer = JournalWriter(bucket, folder, epoch, now_us)
        super().__init__(writer, name=folder, group_s=group_s, group_bytes=object_bytes)
