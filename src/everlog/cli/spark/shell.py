"""`everlog spark shell`: Python with a session, the history as frames and views, and `sql`."""

import code
import sys
from typing import TYPE_CHECKING, Any

from everlog.cli.option_groups import with_options
from everlog.cli.spark.job_options import JobOptions
from everlog.cli.spark.job_session import load, open_session, report_lost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BANNER = """everlog spark shell: Spark {version} on {master}
  spark          the session
{history}  sql("...")     runs a query and shows what it finds
  F              pyspark.sql.functions"""
HISTORY = """  messages       the history in {data}, a frame and a view
  topics         what each topic has, a frame and a view
"""
SHOWN = 50  # rows that `sql` prints


@with_options("job", JobOptions)
def shell(*, job: JobOptions) -> int:
    """Python with `spark`, the views `messages` and `topics`, and `sql`; or run a script from standard input."""
    with open_session(job, needs_data=False) as (spark, bar):
        known = _names(spark, None if job.data is None else load(spark, job))
        bar.end()
        if job.data is not None:
            report_lost(job)
        if sys.stdin.isatty():
            _complete(known)
            code.interact(banner=_banner(spark, job.data), local=known, exitmsg="")
        else:
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), known)
    return 0


def _names(spark: "SparkSession", messages: "DataFrame | None") -> dict[str, Any]:
    """Return what the shell knows."""
    from pyspark.sql import functions as F

    from everlog.spark.jobs import topic_totals

    known: dict[str, Any] = {"spark": spark, "F": F, "__name__": "__console__"}
    if messages is not None:
        topics = topic_totals(messages).select(
            "topic",
            "messages",
            "bytes",
            F.timestamp_micros("first_us").alias("first"),
            F.timestamp_micros("last_us").alias("last"),
        )
        known |= {"messages": messages, "topics": topics}
        messages.createOrReplaceTempView("messages")
        topics.createOrReplaceTempView("topics")

    def sql(query: str, rows: int = SHOWN) -> "DataFrame":
        """Run a query, show its first rows and return the frame."""
        frame = spark.sql(query)
        frame.show(rows, truncate=False)
        return frame

    return {**known, "sql": sql}


def _banner(spark: "SparkSession", data: str | None) -> str:
    history = "" if data is None else HISTORY.format(data=data)
    master = spark.conf.get("spark.master", None) or "a cluster behind Spark Connect"
    return BANNER.format(version=spark.version, master=master, history=history)


def _complete(known: dict[str, Any]) -> None:
    try:
        import readline
        import rlcompleter
    except ImportError:
        return
    readline.set_completer(rlcompleter.Completer(known).complete)
    readline.parse_and_bind("tab: complete")
