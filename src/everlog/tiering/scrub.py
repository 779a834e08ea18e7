"""Removes what no record names: packs that were replaced, and those whose owner died or was replaced before it could
name them. Such an upload may land at any time, so an object is left alone until it is a day old.
"""

import uuid
from collections.abc import Collection, Iterable

from everlog.base import StorageError
from everlog.tiering.ports import Bucket, StoredObject

UNNAMED_S = 24 * 3600.0


def plan_scrub(
    found: Iterable[StoredObject], named: Collection[str], now_s: float, age_s: float = UNNAMED_S
) -> list[str]:
    """Return the objects that no record names and that are older than `age_s`, by the bucket's own clock."""
    return [one.name for one in found if one.name not in named and now_s - one.modified_s > age_s]


def scrub(bucket: Bucket, folder: str, named: Collection[str], age_s: float = UNNAMED_S) -> list[str]:
    """Delete what no record names below a folder, and return the names.

    `named` is what records name now, and what they named a while ago if a reader may still be in it.
    """
    found = list(bucket.find(folder))
    doomed = plan_scrub(found, named, bucket_clock(bucket, folder), age_s)
    for name in doomed:
        bucket.delete(name)
    return doomed


def bucket_clock(bucket: Bucket, folder: str) -> float:
    """Return the time of the bucket's clock: that of this machine may have jumped."""
    name = f"{folder}/probe-{uuid.uuid4().hex}"
    bucket.put(name, b"")
    try:
        for one in bucket.find(folder):
            if one.name == name:
                return one.modified_s
    finally:
        bucket.delete(name)
    raise StorageError(f"what was put into {folder} is not listed", hint="try again later")
