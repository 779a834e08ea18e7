"""`everlog spark structure`: which shapes the topics have."""

from pathlib import Path
from typing import TYPE_CHECKING

from everlog.cli.option_groups import with_options
from everlog.cli.spark.job_options import Html, JobOptions, Json, SettingsData
from everlog.cli.spark.job_results import show_report
from everlog.cli.spark.job_session import load, open_session, report_lost
from everlog.cli.spark.progress_bar import SparkProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from everlog.spark.jobs import Structure


@with_options("job", JobOptions, instead={"data": SettingsData})
def structure(html: Html = None, json: Json = None, *, job: JobOptions) -> int:
    """Learn which shapes the topics have and which topics fit none; writes DATA/structure.json for compaction."""
    with open_session(job) as (spark, bar):
        from everlog.spark.jobs import FILE_NAME, report_structure, write_structure

        found = learn_structure(spark, job, bar)
    show_report(report_structure(found, job.about), html)
    report_lost(job)
    if json is None and job.is_whole and job.data is not None and "://" not in job.data:
        json = Path(job.data) / FILE_NAME
    if json is not None:
        write_structure(found, json)
        print(f"written to {json}")
    return 0


def learn_structure(spark: "SparkSession", job: JobOptions, bar: SparkProgress) -> "Structure":
    """Learn the shapes of the topics from the history."""
    from everlog.spark.jobs import structure_of

    bar.step("learning shapes")
    return structure_of(load(spark, job, "topic", "timestamp", "payload"))
