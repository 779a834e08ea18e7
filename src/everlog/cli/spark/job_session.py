"""A Spark session for one command, and the history that it reads."""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from everlog.base import UsageError
from everlog.cli.data_directory import check_store
from everlog.cli.spark.job_options import JobOptions
from everlog.cli.spark.progress_bar import SparkProgress
from everlog.store import unkept_notes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from everlog.spark import ClusterPlace


@contextmanager
def open_session(job: JobOptions, needs_data: bool = True) -> "Iterator[tuple[SparkSession, SparkProgress]]":
    """Yield a session for one command, and its progress bar; errors of Spark are raised as ours."""
    for name in ("pyspark", "pyarrow", "pandas"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"{name} is not installed", hint="pip install 'everlog[spark]'") from error
    if job.data is None and needs_data:
        raise UsageError("no DATA", hint="give the directory that `everlog serve --data` was given")
    if job.is_state:
        _check_state(job)
    elif job.data is not None and "://" not in job.data:
        check_store(job.data)  # at once; Spark would find out only after its start
    settings = dict(_setting(text) for text in job.conf or ())
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from everlog.spark import spark_session, task_error

    running = SparkSession.getActiveSession()
    with SparkProgress() as bar:
        try:
            if running is None:
                with _quiet_stderr(job.verbose):
                    spark = spark_session("everlog", master=job.master or "local[*]", settings=settings)
            else:
                spark = running
            bar.watch(spark)
            yield spark, bar
        except PySparkException as error:
            raise task_error("Spark failed", str(error), "more with --verbose") from error
        finally:
            bar.end()
            if running is None and (begun := SparkSession.getActiveSession()) is not None:
                begun.stop()


@contextmanager
def _quiet_stderr(verbose: bool) -> Iterator[None]:
    """Discard what a process that is started meanwhile writes to standard error, unless `verbose`."""
    if verbose:
        yield
        return
    sys.stderr.flush()
    usual = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(usual, 2)
        os.close(usual)
        os.close(nowhere)


def load(spark: "SparkSession", job: JobOptions, *columns: str, **options: str) -> "DataFrame":
    """Return the history as a frame with these columns, or all, without what is lost: `report_lost` names that."""
    if job.master is not None and (tasks := cluster_tasks(spark)) is not None:
        options["tasks"] = str(tasks)
    if job.is_state:
        from everlog.spark.jobs import as_history

        found = as_history(spark.read.format("everlog").options(**_source_options(job), **options).load())
        return found.select(*columns) if columns else found
    chosen = {"columns": ",".join(columns), **options} if columns else options
    return spark.read.format("everlog").options(**_source_options(job), **chosen, onLost="skip").load()


def cluster_tasks(spark: "SparkSession") -> int | None:
    """Return how many tasks suit the cores that a cluster has by now; None behind Spark Connect, which does not say."""
    from everlog.spark import TASKS_A_CORE, is_remote

    if is_remote() or not hasattr(spark, "_jsc"):
        return None
    return TASKS_A_CORE * int(spark.sparkContext.defaultParallelism)


def report_lost(job: JobOptions) -> None:
    """Print which offsets a job went without, as neither log nor table has them, and which topics nothing keeps."""
    from everlog.spark import lost_in, name_lost

    if job.is_state:
        return
    lost = lost_in(_source_options(job))
    if lost:
        print(f"left out, as retention removed it before it was compacted: {name_lost(lost)}")
    if "://" not in (job.data or ""):
        for note in unkept_notes(job.data or "", job.topics or ["#"]):
            print(note)


def _source_options(job: JobOptions) -> dict[str, str]:
    where = job.data or ""
    given = {
        "path": _whole(where),
        "topic": json.dumps(job.topics) if job.topics else None,
        "streams": json.dumps(job.streams) if job.streams else None,
        "kv": json.dumps(job.kv) if job.kv else None,
        "from": job.from_,
        "to": job.to,
        "bucket": _whole(job.bucket),
        "bucketOptions": "\n".join(job.bucket_option) if job.bucket_option else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _whole(place: str | None) -> str | None:
    """Return an address as it is, and the whole path of a directory."""
    return place if place is None or "://" in place else os.path.abspath(place)


def data_of(job: JobOptions) -> "str | ClusterPlace":
    """Return the data directory, or the cluster."""
    from everlog.spark import cluster_of

    return cluster_of(_source_options(job)) or job.data or ""


def _check_state(job: JobOptions) -> None:
    """Refuse what says nothing about streams and key-value stores."""
    if job.data is None:
        raise UsageError("no DATA", hint="give the data directory of a broker or of a persist server")
    if job.topics or job.from_ is not None:
        raise UsageError(
            "--topic and --from are for messages",
            hint="choose with --streams FILTER or --kv FILTER, and --to 0:99",
        )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--conf {text!r} is not KEY=VALUE", hint="for example spark.driver.memory=4g")
    return name.strip(), value.strip()
