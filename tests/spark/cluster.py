"""A standalone cluster, or a server of Spark Connect, on this machine: processes of their own, of the pip package."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from everlog.bench.load.brokers import free_port
from everlog.spark.java import find_java, java_home

START_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster: the address of its master, and where its workers write what executors say."""

    master: str
    directory: Path


@contextmanager
def standalone(directory: Path, workers: int = 2, cores: int = 1) -> Iterator[Cluster]:
    """A cluster for as long as the block lasts; Python workers import what this process imports."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as running:
        ui = str(free_port())
        log = directory / "master.log"
        _start(
            running,
            log,
            directory,
            ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", ui],
        )
        _wait_for(log, "I have been elected leader")
        logs = []
        for number in range(workers):
            logs.append(directory / f"worker-{number}.log")
            words = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", str(cores)]
            words += [
                "--memory",
                "1g",
                "--webui-port",
                str(free_port()),
                "--work-dir",
                str(directory / f"work-{number}"),
            ]
            _start(running, logs[-1], directory, [*words, url])
        for path in logs:
            _wait_for(path, "Successfully registered with master")
        yield Cluster(url, directory)


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """A server of Spark Connect for as long as the block lasts; yields its address."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    served = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"]
    log = directory / "connect.log"
    with ExitStack() as running:
        words = ["org.apache.spark.deploy.SparkSubmit", *served, *given, "spark-internal"]
        _start(running, log, directory, words, memory="1g")
        _wait_for(log, "Spark Connect server started")
        yield f"sc://127.0.0.1:{port}"


def _start(running: ExitStack, log: Path, directory: Path, words: list[str], memory: str = "256m") -> None:
    """Start a part in a process group of its own, which is ended with all that it started."""
    import pyspark

    home = Path(str(pyspark.__file__)).parent
    java = java_home(find_java())
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",  # as Spark's own start script sets it, for the executors' class path
        "JAVA_HOME": java,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,  # also the one that a server of Spark Connect looks for sources with
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                f"{java}/bin/java",
                "-cp",
                f"{home}/jars/*",
                f"-Xmx{memory}",
                "-Dspark.master.rest.enabled=false",
                *_OPENS,
                *words,
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    running.callback(_end, process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _wait_for(log: Path, text: str) -> None:
    """Wait until a part says that it is ready."""
    until = time.monotonic() + START_SECONDS
    while text not in log.read_text(errors="replace"):
        if time.monotonic() > until:
            raise AssertionError(f"not ready after {START_SECONDS} s: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


_OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang",
        "java.lang.invoke",
        "java.lang.reflect",
        "java.io",
        "java.net",
        "java.nio",
        "java.util",
        "java.util.concurrent",
        "java.util.concurrent.atomic",
        "sun.nio.ch",
        "sun.nio.cs",
        "sun.security.action",
        "sun.util.calendar",
    )
]
