"""The options of `spark.read.format("everlog")`, read once when a frame is loaded; a misspelt one is refused."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from everlog.base import PeerError, UsageError
from everlog.spark.cluster_place import CLUSTER_OPTIONS, ClusterPlace, is_cluster, locate_cluster
from everlog.spark.log_slices import OnDamage, OnLost, parse_filters
from everlog.spark.payload import load_function, needs_topics
from everlog.spark.schema import DEFAULT_COLUMNS, check_columns

Tier = Literal["all", "log", "table"]

OPTIONS = {
    "path": "the data directory of the store, a cluster's postgresql://..., or a table alone: a directory or s3://...",
    "topic": "a topic filter, or several: a JSON list, or one a line",
    "from": "where to begin: earliest, a time, -24h, or a position like 0:1234",
    "to": "where to end, so too; what lies there is not read",
    "shards": "the shards to read, as in 0,2",
    "columns": "the columns to read, as in offset,topic,payload",
    "payload": "binary, string, json, or a decoder as in module:function",
    "payloadSchema": "the type of a payload that is json or decoded, as in a INT, b STRING",
    "onDamage": "fail at what is damaged, or skip it",
    "onLost": "fail when retention removed what is to be read, or skip it",
    "tier": "all of history, or only what is in the log, or in the table: all, log, table",
    "tasks": "about how many tasks read; three for each core of the session by default",
    **CLUSTER_OPTIONS,
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What is to be read, and how."""

    path: str
    filters: tuple[str, ...] | None = None
    begin: str = "earliest"
    end: str = "latest"
    shards: tuple[int, ...] | None = None
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    payload: str = "binary"
    payload_schema: str = ""
    on_damage: OnDamage = "fail"
    tier: Tier = "all"
    tasks: int | None = None
    on_lost: OnLost = "fail"
    cluster: ClusterPlace | None = None


def read_options(given: Mapping[str, str], also: Mapping[str, str] | None = None) -> SourceOptions:
    """Parse the options of a frame; `also` names options that another part of the source takes."""
    options = known_options(given, (*OPTIONS, *(also or ())))
    if not options.get("path"):
        raise UsageError("where is the log?", hint='say .load(DATA_DIR) or .option("path", DATA_DIR)')
    payload = options.get("payload", "binary")
    payload_schema = options.get("payloadSchema", "").strip()
    if payload in ("binary", "string") and payload_schema:
        raise UsageError(f"payloadSchema says nothing about payloads that are {payload}")
    if payload not in ("binary", "string") and not payload_schema:
        raise UsageError(f"payload {payload!r} needs a type", hint="name it with the option payloadSchema")
    columns = _list(options["columns"]) if "columns" in options else DEFAULT_COLUMNS
    if not columns:
        raise UsageError("the option columns names no column", hint="leave it out to read the usual ones")
    if needs_topics(payload):
        load_function(payload)
    cluster = _cluster(options)
    return SourceOptions(
        path=place_of(options["path"]) if cluster is None else cluster.title,
        filters=parse_filter_list("topic", options["topic"]) if "topic" in options else None,
        begin=options.get("from", "earliest"),
        end=options.get("to", "latest"),
        shards=_numbers("shards", options["shards"]) if "shards" in options else None,
        columns=check_columns(columns),
        payload=payload,
        payload_schema=payload_schema,
        on_damage=cast(OnDamage, choice(options, "onDamage", ("fail", "skip"))),
        tier=cast(Tier, choice(options, "tier", ("all", "log", "table"))),
        tasks=number_above_0("tasks", options["tasks"]) if "tasks" in options else None,
        on_lost=cast(OnLost, choice(options, "onLost", ("fail", "skip"))),
        cluster=cluster,
    )


def cluster_of(given: Mapping[str, str]) -> ClusterPlace | None:
    """Return the cluster that the options of a frame mean, or None."""
    return _cluster(known_options(given, OPTIONS))


def _cluster(options: Mapping[str, str]) -> ClusterPlace | None:
    """Return the cluster that is meant, or None."""
    if is_cluster(options["path"]):
        return locate_cluster(options["path"], options)
    given = [name for name in CLUSTER_OPTIONS if name in options]
    if given:
        raise UsageError(
            f"the option {given[0]} says nothing about {options['path']}",
            hint="it is for a cluster: give the postgresql://... of its database as the path",
        )
    return None


def known_options(given: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the options under their proper names, as Spark may change the case; refuses others."""
    known = {name.lower(): name for name in names}
    for name in given:
        if name.lower() not in known:
            raise UsageError(f"there is no option {name!r}", hint=f"there are: {', '.join(known.values())}")
    return {known[name.lower()]: value for name, value in given.items()}


def place_of(text: str) -> str:
    """Return the directory of a log or a table, or a table in a bucket."""
    return text if text.startswith(("s3://", "s3a://")) else local_path(text)


def local_path(text: str) -> str:
    """Return a directory without the `file:` that Spark may have put in front of it."""
    if text.startswith("file:"):
        return "/" + text[5:].lstrip("/")
    if "://" in text:
        raise UsageError(f"{text} is not a directory", hint="give one that all workers see")
    return text


def parse_filter_list(name: str, text: str) -> tuple[str, ...]:
    """Return the filters in an option: one, a JSON list, or one a line."""
    found = _list(text, "\n")
    if not found:
        raise UsageError(f"the option {name} names no filter", hint='to read everything, write "#"')
    try:
        parse_filters(found)
    except PeerError as error:
        raise UsageError(
            f"the option {name} has {text.strip()!r}: {error.message}",
            hint='several filters are a JSON list, as in ["a/#", "b/#"], or one a line',
        ) from error
    return found


def _list(text: str, between: str = ",") -> tuple[str, ...]:
    """Parse a JSON list of texts, or texts with a separator between them."""
    text = text.strip()
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, list) and all(isinstance(one, str) for one in found):
            return tuple(found)
    return tuple(part.strip() for part in text.split(between) if part.strip())


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.strip("[] ").split(",")}))
    except ValueError:
        raise UsageError(f"the option {name} has {text!r}", hint="write numbers, as in 0,2") from None


def choice(options: Mapping[str, str], name: str, words: Sequence[str]) -> str:
    """Return the value of an option that is one of a few words, the first by default."""
    value = options.get(name, words[0])
    if value not in words:
        raise UsageError(f"{name} is {', '.join(words[:-1])} or {words[-1]}, not {value!r}")
    return value


def number_above_0(name: str, text: str) -> int:
    """Return the number in an option."""
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"the option {name} has {text!r}", hint="write a number above 0")
    return int(text)
