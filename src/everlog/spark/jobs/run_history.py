"""The histories of a test run: what was published, what the log has, and what was delivered.

Each is JSON lines (`.jsonl`, `.ndjson`, `.json`, also with `.gz`) or Parquet, a file or a directory of them:

- published: `publisher`, `topic`, `sequence` (counted up by each publisher on each topic), and `acked`, whether the
  broker acknowledged it; without that column all were.
- logged: `publisher`, `topic`, `sequence`, `shard`, `offset`; or the store itself (`logged_in`), when messages say who
  sent them.
- delivered: `subscriber`, `publisher`, `topic`, `sequence`, `position` (rises in the order of arrival), and `dup`,
  whether the broker said that it sends it again; without that column never.
- subscriptions: `subscriber`, `filter`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from everlog.base import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MESSAGE = {"publisher": "STRING", "topic": "STRING", "sequence": "BIGINT"}
NEEDED: Mapping[str, Mapping[str, str]] = {
    "published": _MESSAGE,
    "logged": {**_MESSAGE, "shard": "INT", "offset": "BIGINT"},
    "delivered": {"subscriber": "STRING", **_MESSAGE, "position": "BIGINT"},
    "subscriptions": {"subscriber": "STRING", "filter": "STRING"},
}
OPTIONAL: Mapping[str, Mapping[str, tuple[str, bool]]] = {  # the type, and what it is where nothing is said
    "published": {"acked": ("BOOLEAN", True)},
    "delivered": {"dup": ("BOOLEAN", False)},
}
_JSON = (".jsonl", ".ndjson", ".json")
IDENTITIES = ("json", "properties")


def read_history(spark: "SparkSession", kind: str, path: str) -> "DataFrame":
    """Read a history with exactly its columns; raises UsageError if something is wrong with the file."""
    columns = {**NEEDED[kind], **{name: type_ for name, (type_, _) in OPTIONAL.get(kind, {}).items()}}
    if not Path(path).exists():
        raise UsageError(f"{path} does not exist", hint=f"give a file or directory with what was {kind}")
    if _is_json(Path(path)):
        ddl = ", ".join(f"`{name}` {type_}" for name, type_ in columns.items())
        frame = spark.read.schema(ddl).json(path)
    else:
        frame = spark.read.parquet(path)
    absent = [name for name in NEEDED[kind] if name not in frame.columns]
    if absent:
        raise UsageError(f"{path} has no column {', '.join(absent)}", hint=f"needed of what was {kind}")
    for name, (type_, default) in OPTIONAL.get(kind, {}).items():
        given = F.col(name).cast(type_) if name in frame.columns else F.lit(None).cast(type_)
        frame = frame.withColumn(name, F.coalesce(given, F.lit(default)))
    frame = frame.select([F.col(name).cast(type_).alias(name) for name, type_ in columns.items()])
    _check_whole(frame, kind, path)
    return frame


def _is_json(path: Path) -> bool:
    first = path
    if path.is_dir():
        first = next((one for one in sorted(path.rglob("*")) if one.is_file() and one.name[0] not in "._"), path)
    return first.name.removesuffix(".gz").endswith(_JSON)


def _check_whole(frame: "DataFrame", kind: str, path: str) -> None:
    lacking = F.lit(False)
    for name in NEEDED[kind]:
        lacking = lacking | F.col(name).isNull()
    row = frame.where(lacking).first()
    if row is not None:
        raise UsageError(f"{path} has a row that lacks something: {row.asDict()}", hint=f"see {kind} in the manual")


def logged_in(messages: "DataFrame", identity: str) -> "DataFrame":
    """Return the messages in a store that say who sent them, in JSON payloads or user properties."""
    if identity == "json":
        text = F.col("payload").cast("string")
        who, number = F.get_json_object(text, "$.publisher"), F.get_json_object(text, "$.sequence")
    elif identity == "properties":
        who, number = F.col("user_properties")["publisher"], F.col("user_properties")["sequence"]
    else:
        raise UsageError(f"messages can't say who sent them by {identity!r}", hint=f"use {' or '.join(IDENTITIES)}")
    named = messages.select(
        who.alias("publisher"), "topic", number.try_cast("bigint").alias("sequence"), "shard", "offset"
    )
    return named.where(F.col("publisher").isNotNull() & F.col("sequence").isNotNull())
