"""Says in the header of every run which twin of the kernels it tests."""

import os
from pathlib import Path

from hypothesis import settings

from everlog import __version__, _kernels

# No test asserts a time. Where a run decides (CI=true) each run tries the same examples; elsewhere each tries new ones.
settings.register_profile("everlog", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("everlog")

# Tests of the whole, with real processes, that take long or share a folder: they run once, on compiled kernels.
ONCE = {
    "crash/test_broker_kills.py",
    "interop/test_mqtt_js.py",
    "interop/test_websocket_clients.py",
    "system/test_abuse.py",
    "system/test_groups.py",
    "system/test_replay.py",
}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    where = collection_path.relative_to(Path(__file__).parent).as_posix()
    return True if where in ONCE and _kernels.interpreted() else None


def pytest_report_header() -> str:
    return f"everlog {__version__}, kernels {_kernels.describe()}"
