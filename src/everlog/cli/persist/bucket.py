"""`everlog persist verify` and `restore`, `everlog stream restore`: what is in a bucket, checked and brought back."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from everlog.app import parse_seconds
from everlog.base import UsageError
from everlog.cli.persist.printer import print_json, show_time
from everlog.cli.table_printer import print_table
from everlog.persist import find_shards, read_bucket_record, restore_directory
from everlog.streams import (
    AsOf,
    Checked,
    Damaged,
    LocalPlace,
    check_shard_in_bucket,
    check_shard_on_disk,
    restore_stream,
    state_shard_of,
)
from everlog.tiering import open_bucket

BucketOption = Annotated[str, typer.Option("--bucket", metavar="URL", help="A directory, or s3://bucket/prefix, …")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


def verify(
    data: Annotated[Path | None, typer.Option("-d", "--data", metavar="DIR", help="What a server has here.")] = None,
    bucket: Annotated[
        str | None, typer.Option("--bucket", metavar="URL", help="What is in a bucket or in shared storage.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Check journals, packs and files against their checksums. Changes nothing; servers may run."""
    if (data is None) == (bucket is None):
        raise UsageError("verify what?", hint="give --data DIR, or --bucket URL")
    table = Table("shard", "journal records", "streams", "bytes", "damage")
    damage: list[Damaged] = []
    for shard, found, checked in _checks(data, bucket):
        damage += found
        counts = (checked.records, checked.streams, checked.bytes, len(found))
        table.add_row(str(shard), *(f"{count:,}" for count in counts))
        if as_json:
            print_json({"shard": shard, **msgspec.to_builtins(checked), "damage": msgspec.to_builtins(found)})
    if not as_json:
        print_table(table)
        for one in damage:
            print(_line(one))
    return int(bool(damage))


def _checks(data: Path | None, bucket: str | None) -> Iterator[tuple[int, list[Damaged], Checked]]:
    if bucket is not None:
        opened = open_bucket(bucket)
        for shard in range(read_bucket_record(opened).shards):
            checked = Checked()
            yield shard, list(check_shard_in_bucket(opened, f"shard-{shard}", checked)), checked
        return
    for shard, place in enumerate(find_shards(str(data))):
        if not isinstance(place, LocalPlace):
            raise UsageError(f"{data} is storage that servers share", hint=f"give --bucket {data}")
        checked = Checked()
        found = check_shard_on_disk(place.directory, checked) if os.path.isdir(place.directory) else ()
        yield shard, list(found), checked


def _line(one: Damaged) -> str:
    about = f" (stream {one.stream})" if one.stream else ""
    positions = f", positions {one.first} to {one.last}" if one.first >= 0 else ""
    return f"{one.place}{about}{positions}: {one.what}"


def restore(
    bucket: BucketOption,
    data: Annotated[Path, typer.Option("-d", "--data", metavar="DIR", help="The new directory.")],
    as_json: JsonOption = False,
) -> int:
    """Make a lost data directory anew from its bucket; start the server on it with the same bucket."""
    table = Table("shard", "streams in packs", "journal from", "journal to")
    for one in restore_directory(open_bucket(bucket), str(data)):
        table.add_row(*(f"{count:,}" for count in (one.shard, one.streams, one.start, one.end)))
        if as_json:
            print_json(msgspec.to_builtins(one))
    if not as_json:
        print_table(table)
    return 0


def restore_one(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, such as team/to-do.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")],
    bucket: BucketOption,
    seq: Annotated[int | None, typer.Option(metavar="SEQ", min=0, help="As it was before the next seq.")] = None,
    at: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="As it was then: 2026-11-18T06:00:00Z, or -10m.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Write a stream or key-value store, as it was, from a bucket to a plain SQLite file; no server is asked."""
    if file.exists():
        raise UsageError(f"{file} exists", hint="choose another name")
    opened = open_bucket(bucket)
    shard = state_shard_of(name, read_bucket_record(opened).shards)
    wanted = AsOf(seq, None if at is None else _time_us(at))
    done = restore_stream(opened, f"shard-{shard}", name, str(file), wanted)
    if as_json:
        print_json({"file": str(file), **msgspec.to_builtins(done)})
    else:
        what = f"{done.messages:,} messages up to seq {done.last_seq}, as of {show_time(done.time_us)}"
        print(f"{file}: {what}")
    return 0


def _time_us(text: str) -> int:
    if text.startswith("-"):
        return int((time.time() - parse_seconds(text[1:])) * 1e6)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time", hint="such as 2026-11-18T06:00:00Z, or -10m") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1e6)
