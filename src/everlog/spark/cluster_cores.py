"""How many cores a session has for its tasks.

Whoever plans the tasks of a frame is a process that Spark starts and tells nothing about the cluster. So the function
`spark_session` leaves the number in the environment of such processes; a session of another making may do so too.
"""

import os
import re
from collections.abc import Mapping

VARIABLE = "EVERLOG_CORES"
SETTING = f"spark.executorEnv.{VARIABLE}"
TASKS_A_CORE = 3

_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")


def task_count(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many tasks a frame has that does not say: three for each core, of this machine where none is named."""
    text = environment.get(VARIABLE, "")
    cores = int(text) if text.isdecimal() else 0
    return TASKS_A_CORE * (cores or os.cpu_count() or 1)


def cores_of(master: str, settings: Mapping[str, str]) -> int | None:
    """Return the cores that a session will have, or None where only the cluster knows."""
    found = _LOCAL.fullmatch(master)
    if found is not None:
        return (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)
    most = settings.get("spark.cores.max", "")
    if most.isdecimal():
        return int(most)
    each, count = settings.get("spark.executor.cores", ""), settings.get("spark.executor.instances", "")
    return int(each) * int(count) if each.isdecimal() and count.isdecimal() else None
