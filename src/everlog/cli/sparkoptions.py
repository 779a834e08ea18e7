"""The options that the commands of `everlog spark` share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Data: TypeAlias = Annotated[str, typer.Argument(metavar="DATA", help="The data directory of a broker.")]
MaybeData: TypeAlias = Annotated[str | None, typer.Argument(metavar="[DATA]", help="The data directory of a broker.")]
Topic: TypeAlias = Annotated[
    list[str] | None, typer.Option("--topic", "-t", metavar="FILTER", help="Only these topics; repeatable.")
]
From: TypeAlias = Annotated[
    str | None, typer.Option("--from", metavar="WHEN", help="From there on: a time, -24h, or a position.")
]
To: TypeAlias = Annotated[str | None, typer.Option("--to", metavar="WHEN", help="Up to there, not included.")]
Master: TypeAlias = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Where Spark runs; all cores of this machine otherwise.")
]
Conf: TypeAlias = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; repeatable.")
]
Html: TypeAlias = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a report there too.")]
Json: TypeAlias = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result there too.")]
Top: TypeAlias = Annotated[int, typer.Option("--top", min=1, metavar="N", help="How many of each are shown.")]
Verbose: TypeAlias = Annotated[bool, typer.Option("--verbose", "-v", help="Let Spark say what it does.")]
Table: TypeAlias = Annotated[
    str | None, typer.Option("--table", metavar="PLACE", help="A directory or s3://bucket/prefix; DATA/lake otherwise.")
]
TableOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Of the table's storage, as AWS_REGION; repeatable."),
]
