"""`everlog spark audit`: a store alone, or the histories of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from everlog.base import UsageError
from everlog.cli.sparkjobs import Source, load, publish, session, write_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Histories:
    """Files with what was published, logged and delivered, and how messages in a store say who sent them."""

    published: str | None = None
    logged: str | None = None
    delivered: str | None = None
    subscriptions: str | None = None
    identity: str = "json"

    @property
    def any_given(self) -> bool:
        """Whether there is more than a store to look at."""
        return any(path is not None for path in (self.published, self.logged, self.delivered, self.subscriptions))


def audit(source: Source, histories: Histories, top: int, html: Path | None, json_file: Path | None) -> int:
    """Look for what is wrong; 1 if anything is."""
    if not histories.any_given:
        return audit_one(source, html, json_file)
    if source.data is not None and histories.logged is not None:
        raise UsageError("both DATA and --logged say what the log has", hint="leave one out")
    if source.data is None and histories.logged is None and histories.published is None:
        raise UsageError("nothing to compare with", hint="give DATA, --logged or --published too")
    if source.data is not None or histories.logged is not None or histories.delivered is not None:
        return audit_run(source, histories, top, html, json_file)
    raise UsageError("nothing to compare what was published with", hint="give DATA, --logged or --delivered too")


def audit_one(source: Source, html: Path | None, json_file: Path | None) -> int:
    """A store alone."""
    with session(source) as (spark, bar):
        from everlog.spark.jobs import audit_store, report_store

        bar.step("checking")
        found = audit_store(load(spark, source, "shard", "offset", "timestamp"), filtered=bool(source.topics))
    publish(report_store(found, source.about), html)
    write_json(found, json_file)
    return int(not all(shard.is_good for shard in found))


def audit_run(source: Source, histories: Histories, top: int, html: Path | None, json_file: Path | None) -> int:
    """What was published, logged and delivered, one against the other."""
    with session(source, needs_data=False) as (spark, bar):
        from everlog.spark.jobs import audit_histories, report_audit

        bar.step("comparing")
        found = audit_histories(
            published=_history(spark, "published", histories.published, source),
            logged=_logged(spark, source, histories),
            delivered=_history(spark, "delivered", histories.delivered, source),
            subscriptions=_history(spark, "subscriptions", histories.subscriptions, source),
            top=top,
        )
    files = (histories.published, histories.logged, histories.delivered)
    publish(report_audit(found, ", ".join(part for part in (source.about, *files) if part)), html)
    write_json(found, json_file)
    return int(not found.is_good)


def _history(spark: "SparkSession", kind: str, path: str | None, source: Source) -> "DataFrame | None":
    from pyspark.sql import functions as F

    from everlog.spark.jobs import filter_regex, read_history

    if path is None:
        return None
    frame = read_history(spark, kind, path)
    if source.topics and "topic" in frame.columns:
        pattern = "|".join(filter_regex(text) for text in source.topics)
        frame = frame.where(F.col("topic").rlike(pattern))
    return frame


def _logged(spark: "SparkSession", source: Source, histories: Histories) -> "DataFrame | None":
    if source.data is None:
        return _history(spark, "logged", histories.logged, source)
    from everlog.spark.jobs import logged_in

    known_by = "payload" if histories.identity == "json" else "user_properties"
    return logged_in(load(spark, source, "shard", "offset", "topic", known_by), histories.identity)
