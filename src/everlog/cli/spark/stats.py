"""`everlog spark stats`: the history in numbers."""

from pathlib import Path
from typing import Annotated

import typer

from everlog.base import UsageError
from everlog.cli.option_groups import with_options
from everlog.cli.spark.job_options import Html, JobOptions, Json, SettingsData, Top
from everlog.cli.spark.job_results import show_report, write_json
from everlog.cli.spark.job_session import load, open_session, report_lost
from everlog.cli.spark.structure import learn_structure


@with_options("job", JobOptions, instead={"data": SettingsData})
def stats(
    by: Annotated[str, typer.Option(metavar="WHAT", help="topic, shape, or a number of levels.")] = "topic",
    top: Top = 20,
    html: Html = None,
    json: Json = None,
    *,
    job: JobOptions,
) -> int:
    """Rates, sizes, gaps and silence; who talks most, and when."""
    if by not in ("topic", "shape") and not (by.isdigit() and int(by)):
        raise UsageError(f"--by {by!r} is nothing to count by", hint="give topic, shape, or a number of levels")
    with open_session(job) as (spark, bar):
        from everlog.spark import jobs

        bar.step("looking at times")
        span = jobs.time_span(load(spark, job, "timestamp")) or (0, 0)
        slice_us = jobs.choose_slice(*span)
        bar.step("counting")
        slices = jobs.slices_of(load(spark, job, "topic", "timestamp", "payload"), slice_us).persist()
        key, what = None, "topic"
        if by == "shape":
            known = None if job.is_state else jobs.read_structure(Path(job.data or "") / jobs.FILE_NAME)
            key, what = jobs.shape_key(known or learn_structure(spark, job, bar)), "shape"
        elif by != "topic":
            key, what = jobs.levels_key(int(by)), "group"
        found = jobs.stats_of(slices, slice_us, key, top)
        slices.unpersist()
    show_report(jobs.report_stats(found, job.about, what), html)
    report_lost(job)
    write_json(found, json)
    return 0
