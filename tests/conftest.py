"""Says in the header of every run which twin of the kernels it tests."""

import os

from hypothesis import settings

from everlog import __version__, _kernels

# No test asserts a time. Where a run decides (CI=true) each run tries the same examples; elsewhere each tries new ones.
settings.register_profile("everlog", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("everlog")


def pytest_report_header() -> str:
    return f"everlog {__version__}, kernels {_kernels.describe()}"
