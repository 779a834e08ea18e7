"""Says in the header of every run which twin of the kernels it tests."""

from hypothesis import settings

from everlog import __version__, _kernels

settings.register_profile("everlog", deadline=None)  # no test asserts a time
settings.load_profile("everlog")


def pytest_report_header() -> str:
    return f"everlog {__version__}, kernels {_kernels.describe()}"
