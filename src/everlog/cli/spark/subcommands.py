"""`everlog spark`: jobs over the whole history, on this machine or a cluster."""

import typer

from everlog.cli.spark.audit import audit
from everlog.cli.spark.compact import compact, vacuum
from everlog.cli.spark.replay import replay
from everlog.cli.spark.shell import shell
from everlog.cli.spark.stats import stats
from everlog.cli.spark.structure import structure

app = typer.Typer(rich_markup_mode=None)
for command in (structure, stats, audit, replay, shell, compact, vacuum):
    app.command()(command)
