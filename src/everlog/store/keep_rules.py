"""`keep.json` in a data directory: which topics the settings of the broker that serves it keep.

Written at each start, for programs that read the directory without asking the broker: a filter that nothing keeps has
no history to wait for. What durable sessions are subscribed to is kept besides, and what was kept before is there
until retention removes it, so that the rules tell what to expect and never what to read.
"""

from collections.abc import Sequence

import msgspec

from everlog.base import StorageError
from everlog.store.whole_file import read_record, write_record
from everlog.topics import Filter, covers, overlap, parse_filter

FILE_NAME = "keep.json"
VERSION = 1


class KeepRules(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept for replay: what matches `filters` and none of `never`, from a QoS upwards."""

    filters: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    min_qos: int = 0
    version: int = VERSION

    def keeps(self, asked: Filter) -> bool:
        """Return whether some topic that a filter matches is kept; if it is hard to tell, True."""
        never = [parse_filter(text) for text in self.never]
        if any(covers(one, asked) for one in never):
            return False
        kept = (parse_filter(text) for text in self.filters)
        return any(overlap(one, asked) and not any(covers(no, one) for no in never) for one in kept)


def say_unkept(pattern: str) -> str:
    """Say what the history of a filter is that no setting keeps."""
    return f"no setting keeps {pattern} (keep.filters, keep.never): its history is what durable sessions were owed"


def write_keep_rules(data: str, rules: KeepRules) -> None:
    """Replace the file whole and durably."""
    write_record(data, FILE_NAME, rules)


def read_keep_rules(data: str) -> KeepRules | None:
    """Return the contents of the file, or None if there is none; refuse an unknown version."""
    return read_record(data, FILE_NAME, KeepRules, (VERSION,), "remove it; the next start of the broker writes it anew")


def unkept_notes(data: str, filters: Sequence[str]) -> list[str]:
    """Return what to say of filters that the settings of a data directory's broker do not keep."""
    try:
        rules = read_keep_rules(data)
    except StorageError as error:
        return [str(error)]  # what there is can be read all the same
    if rules is None:
        return []
    asked = [parse_filter(text) for text in filters]
    return [say_unkept(one.pattern) for one in asked if not rules.keeps(one)]
