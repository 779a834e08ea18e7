"""Files of streams without real syncs, which nothing here depends on: `tests/power_cut.py` knows what is synced."""

import pytest

from everlog.streams import catalogue, open_files, stream_file


@pytest.fixture(autouse=True)
def quick_files(monkeypatch):
    """Sync nothing."""
    pragmas = [*stream_file._PRAGMAS, "PRAGMA synchronous = OFF"]
    monkeypatch.setattr(stream_file, "_PRAGMAS", pragmas)
    for module in (catalogue, open_files, stream_file):
        monkeypatch.setattr(module, "sync_directory", lambda path: None)
