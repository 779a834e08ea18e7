"""`everlog spark audit`: checks a store alone, or compares the histories of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everlog.base import UsageError
from everlog.cli.option_groups import with_options
from everlog.cli.spark.job_options import Html, JobOptions, Json, Top
from everlog.cli.spark.job_results import show_report, write_json
from everlog.cli.spark.job_session import load, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class HistoryFiles:
    """Files with what was published, logged and delivered, and how messages in a store say who sent them."""

    published: Annotated[
        str | None, typer.Option(metavar="PATH", help="What was published: JSON lines or Parquet.")
    ] = None
    logged: Annotated[str | None, typer.Option(metavar="PATH", help="What the log has, if not DATA itself.")] = None
    delivered: Annotated[str | None, typer.Option(metavar="PATH", help="What was delivered to subscribers.")] = None
    subscriptions: Annotated[str | None, typer.Option(metavar="PATH", help="Who subscribed to what.")] = None
    identity: Annotated[
        str, typer.Option(metavar="HOW", help="How messages in DATA say who sent them: json, properties.")
    ] = "json"

    @property
    def any_given(self) -> bool:
        """Whether there is more to look at than a store."""
        return any(path is not None for path in (self.published, self.logged, self.delivered, self.subscriptions))


@with_options("job", JobOptions)
@with_options("files", HistoryFiles)
def audit(*, files: HistoryFiles, top: Top = 100, html: Html = None, json: Json = None, job: JobOptions) -> int:
    """Check a store alone, or compare what was published, logged and delivered; exit code 1 if anything is wrong."""
    if job.is_state:
        raise UsageError("an audit is of messages", hint="leave out --streams and --kv")
    if not files.any_given:
        return _audit_store(job, html, json)
    if job.data is not None and files.logged is not None:
        raise UsageError("both DATA and --logged say what the log has", hint="leave one out")
    if job.data is None and files.logged is None and files.published is None:
        raise UsageError("nothing to compare with", hint="give DATA, --logged or --published too")
    if job.data is not None or files.logged is not None or files.delivered is not None:
        return _audit_run(job, files, top, html, json)
    raise UsageError("nothing to compare what was published with", hint="give DATA, --logged or --delivered too")


def _audit_store(job: JobOptions, html: Path | None, json_file: Path | None) -> int:
    with open_session(job) as (spark, bar):
        from everlog.spark.jobs import audit_store, report_store

        bar.step("checking")
        rows = load(spark, job, "shard", "offset", "timestamp", onDamage="skip")  # its gaps are what is looked for
        found = audit_store(rows, filtered=bool(job.topics))
    show_report(report_store(found, job.about), html)
    write_json(found, json_file)
    return int(not all(shard.is_good for shard in found))


def _audit_run(job: JobOptions, files: HistoryFiles, top: int, html: Path | None, json_file: Path | None) -> int:
    with open_session(job, needs_data=False) as (spark, bar):
        from everlog.spark.jobs import audit_histories, report_audit

        bar.step("comparing")
        found = audit_histories(
            published=_history(spark, "published", files.published, job),
            logged=_logged(spark, job, files),
            delivered=_history(spark, "delivered", files.delivered, job),
            subscriptions=_history(spark, "subscriptions", files.subscriptions, job),
            top=top,
        )
    about = (job.about, files.published, files.logged, files.delivered)
    show_report(report_audit(found, ", ".join(part for part in about if part)), html)
    write_json(found, json_file)
    return int(not found.is_good)


def _history(spark: "SparkSession", kind: str, path: str | None, job: JobOptions) -> "DataFrame | None":
    from pyspark.sql import functions as F

    from everlog.spark.jobs import filter_regex, read_history

    if path is None:
        return None
    frame = read_history(spark, kind, path)
    if job.topics and "topic" in frame.columns:
        pattern = "|".join(filter_regex(text) for text in job.topics)
        frame = frame.where(F.col("topic").rlike(pattern))
    return frame


def _logged(spark: "SparkSession", job: JobOptions, files: HistoryFiles) -> "DataFrame | None":
    if job.data is None:
        return _history(spark, "logged", files.logged, job)
    from everlog.spark.jobs import logged_in

    known_by = "payload" if files.identity == "json" else "user_properties"
    return logged_in(load(spark, job, "shard", "offset", "topic", known_by, onDamage="skip"), files.identity)
