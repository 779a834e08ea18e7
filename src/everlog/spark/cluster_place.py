"""Where a cluster is: its database, which only the driver asks, and its bucket, which every task reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from everlog.base import UsageError
from everlog.spark.snapshot import BucketAddress

CLUSTER_OPTIONS = {
    "bucket": "of a cluster: where its segments are, a directory that all workers see or s3://bucket/prefix",
    "bucketOptions": "of a cluster: the bucket's options, a JSON object or NAME=VALUE lines; the environment otherwise",
    "schema": "of a cluster: the schema of its tables, everlog by default",
    "pinHours": "of a cluster: how long what the frame reads is not deleted, 24 by default",
}
_SCHEMES = ("postgresql://", "postgres://")
PIN_HOURS = 24


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """A cluster's database and bucket."""

    url: str = field(repr=False)
    schema: str
    bucket: BucketAddress
    pin_hours: int = PIN_HOURS

    @property
    def title(self) -> str:
        """The database's address without its password."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")
        name = host[0].partition(":")[0]
        return urlunsplit(parts._replace(netloc=f"{name}@{host[2]}" if name else host[2], query=""))

    def for_tasks(self) -> "ClusterPlace":
        """Return what tasks may know: they never connect to the database."""
        return replace(self, url="")


def is_cluster(path: str) -> bool:
    """Return whether this is the address of a cluster's database."""
    return path.startswith(_SCHEMES)


def locate_cluster(path: str, options: Mapping[str, str]) -> ClusterPlace:
    """Return the cluster at an address, with the options of a frame that say the rest."""
    url, named = split_schema(path)
    bucket = options.get("bucket", "")
    if not bucket:
        raise UsageError(
            "where is the cluster's bucket?", hint='say .option("bucket", PLACE), with what the brokers have'
        )
    if bucket.startswith("memory:"):
        raise UsageError("a bucket in memory can't be read by others", hint="use a directory or an object store")
    hours = options.get("pinHours", str(PIN_HOURS))
    if not hours.isdecimal() or int(hours) < 1:
        raise UsageError(f"the option pinHours has {hours!r}", hint="write a number above 0")
    address = BucketAddress(bucket, tuple(sorted(_store_options(options.get("bucketOptions", "")).items())))
    return ClusterPlace(url, options.get("schema", named or "everlog"), address, int(hours))


def split_schema(url: str) -> tuple[str, str]:
    """Return a URL without the `schema=` of its query, and the schema, or nothing."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query)
    rest = urlencode([pair for pair in query if pair[0] != "schema"])
    return urlunsplit(parts._replace(query=rest)), dict(query).get("schema", "")


def _store_options(text: str) -> dict[str, str]:
    text = text.strip()
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return {str(name): str(value) for name, value in found.items()}
    pairs = [line.strip().partition("=") for line in text.splitlines() if line.strip()]
    if any(not name or not equals for name, equals, _ in pairs):
        raise UsageError("the option bucketOptions is not understood", hint="write a JSON object, or NAME=VALUE lines")
    return {name: value for name, _, value in pairs}
