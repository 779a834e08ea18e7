"""A power cut for the SQLite files of a state shard: each file goes back to what it was when it was last synced.

SQLite syncs a file when its write-ahead log is checkpointed, and at no other time; a cut loses at worst all since.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from everlog.streams.catalogue import Catalogue
from everlog.streams.open_files import OpenFiles
from everlog.streams.stream_file import StreamFile


class PowerCut:
    """What of the files under a directory is synced."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.durable: dict[str, bytes] = {}

    def note(self, path: str) -> None:
        """Take a file as it is for synced."""
        self.durable[path] = Path(path).read_bytes()

    def forget(self, path: str) -> None:
        """Take a file's removal for synced."""
        self.durable.pop(path, None)

    def cut_off(self, directory: Path) -> None:
        """Lose a directory, synced or not."""
        shutil.rmtree(directory)
        self.durable = {path: data for path, data in self.durable.items() if not path.startswith(f"{directory}/")}

    def cut(self) -> None:
        """Lose all that is not synced."""
        shutil.rmtree(self.directory)
        self.directory.mkdir()
        for path, content in self.durable.items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).write_bytes(content)


@contextmanager
def watched(directory: Path) -> Iterator[PowerCut]:
    """Watch what is synced under a directory."""
    power = PowerCut(directory)
    with pytest.MonkeyPatch.context() as patch:
        for kind, name in ((StreamFile, "sync"), (StreamFile, "close"), (Catalogue, "sync"), (Catalogue, "close")):
            patch.setattr(kind, name, _noting(getattr(kind, name), power))
        unlink = OpenFiles._unlink

        def unlinked(files: OpenFiles, path: str) -> None:
            unlink(files, path)
            power.forget(path)

        patch.setattr(OpenFiles, "_unlink", unlinked)
        yield power


def _noting(method: Any, power: PowerCut) -> Any:
    def call(one: Any) -> Any:
        done = method(one)
        power.note(one.path)
        return done

    return call
