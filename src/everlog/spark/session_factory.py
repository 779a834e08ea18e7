"""A Spark session set up for the log: on this machine unless another master is named, and quiet.

Python workers talk to Spark over a Unix socket (over TCP each task would wait 40 ms), times are UTC, the driver listens
on loopback only, and workers run this Python.
"""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from everlog.base import UsageError
from everlog.spark.cluster_cores import SETTING, cores_of
from everlog.spark.java import find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARROW_ROWS = 32_768

# Spark copies every value out of Arrow's memory. Without Arrow's bounds and null checks (Spark checks for null itself),
# and with a collector for throughput, that takes two thirds of the time.
_JAVA = (
    "-Duser.timezone=UTC -XX:+UseParallelGC "
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.buffer.size": str(1 << 20),  # between Spark and its Python workers
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
}
_OF_QUERIES = ("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.session.timeZone")
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def is_remote(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment says that sessions are those of a server behind Spark Connect."""
    return bool(environment.get("SPARK_REMOTE")) or environment.get("SPARK_API_MODE", "").lower() == "connect"


def session_settings(master: str, driver_memory: str) -> dict[str, str]:
    """Return the settings of a session; the driver is on loopback unless the master is on another machine."""
    is_local = master.startswith("local") or "//127.0.0.1:" in master or "//localhost:" in master
    return {**_SETTINGS, **(_LOOPBACK if is_local else {}), "spark.driver.memory": driver_memory}


def prepare_environment() -> None:
    """Set what Spark reads from the environment where nobody has set it, or to a Java that does not run."""
    os.environ["JAVA_HOME"] = java_home(find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def spark_session(
    app_name: str = "everlog",
    *,
    master: str = "local[*]",
    driver_memory: str = "1g",
    settings: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
) -> "SparkSession":
    """Return the session of this process, begun if there is none; `settings` are Spark's own and win over ours."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(f"Spark is not installed ({error})", hint="pip install 'everlog[spark]'") from error
    if master.startswith("sc://") or is_remote():
        return _connect(SparkSession.builder, app_name, master, settings or {})
    prepare_environment()
    is_local = master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app_name).master(master)
    chosen = {**session_settings(master, driver_memory), **(settings or {})}
    if (cores := cores_of(master, chosen)) is not None:
        chosen.setdefault(SETTING, str(cores))
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return session


def _connect(builder: Any, app_name: str, master: str, settings: Mapping[str, str]) -> "SparkSession":
    """Return a session of a server behind Spark Connect, which has its own Java, cores and log level.

    Of our settings those of queries are made; the others are of the server's start.
    """
    builder = builder.appName(app_name)
    if master.startswith("sc://"):
        builder = builder.remote(master)
    ours = {name: value for name, value in _SETTINGS.items() if name in _OF_QUERIES}
    for name, value in {**ours, **settings}.items():
        builder = builder.config(name, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except ImportError as error:
        raise UsageError(
            f"Spark Connect is not installed ({str(error).splitlines()[0]})", hint="pip install 'pyspark[connect]'"
        ) from error
    return session
