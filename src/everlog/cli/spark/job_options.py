"""The options that the commands of `everlog spark` share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from everlog.cli.data_directory import data_of_settings

Data: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="DATA", help="The data directory of a broker, or a cluster's postgresql://...")
]
SettingsData: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        default_factory=lambda: str(data_of_settings()),
        show_default=False,
        help="The data directory of a broker, by default that of the settings, or a cluster's postgresql://...",
    ),
]
Html: TypeAlias = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a report there too.")]
Json: TypeAlias = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result there too.")]
Top: TypeAlias = Annotated[int, typer.Option("--top", min=1, metavar="N", help="How many of each are shown.")]
Table: TypeAlias = Annotated[
    str | None, typer.Option("--table", metavar="PLACE", help="A directory or s3://bucket/prefix; DATA/lake otherwise.")
]
TableOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="For the table's storage, as AWS_REGION; repeatable."),
]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The history that a job reads, which part of it, and where Spark runs."""

    data: Data = None
    topics: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="FILTER", help="Only these topics; repeatable.")
    ] = None
    from_: Annotated[
        str | None, typer.Option("--from", metavar="WHEN", help="From there on: a time, -24h, or a position.")
    ] = None
    to: Annotated[str | None, typer.Option(metavar="WHEN", help="Up to there, not included.")] = None
    streams: Annotated[
        list[str] | None,
        typer.Option("--streams", metavar="FILTER", help="Streams instead of messages; repeatable."),
    ] = None
    kv: Annotated[
        list[str] | None,
        typer.Option("--kv", metavar="FILTER", help="Key-value stores instead of messages; repeatable."),
    ] = None
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where Spark runs; all cores of this machine otherwise."),
    ] = None
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark; repeatable.")] = None
    bucket: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Of a cluster: the bucket that its brokers have.")
    ] = None
    bucket_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For that bucket, as AWS_REGION; repeatable.")
    ] = None
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Let Spark say what it does.")] = False

    @property
    def is_whole(self) -> bool:
        """Whether all of the history is meant."""
        return not self.topics and self.from_ is None and self.to is None and not self.is_state

    @property
    def is_state(self) -> bool:
        """Whether streams or key-value stores are meant, and not messages."""
        return bool(self.streams or self.kv)

    @property
    def about(self) -> str:
        """The history and the part of it, in words."""
        parts = [self.data or "", *(f"topic {topic}" for topic in self.topics or ())]
        parts += [f"streams {one}" for one in self.streams or ()] + [f"kv {one}" for one in self.kv or ()]
        parts += [f"from {self.from_}"] * (self.from_ is not None) + [f"to {self.to}"] * (self.to is not None)
        return ", ".join(part for part in parts if part)
