"""Checks files that tasks reported before they are committed: a worker may have written them to a place of its own."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from everlog.base import StorageError
from everlog.spark.lake.data_file import WrittenFile
from everlog.spark.lake.location import Location

THREADS = 8  # a bucket takes its time to answer


def check_files(location: Location, files: Sequence[WrittenFile]) -> None:
    """Raise StorageError unless every file is in the table's place with the size and the rows that were reported."""
    filesystem, root = location.filesystem()

    def look(file: WrittenFile) -> None:
        try:
            with filesystem.open_input_file(f"{root}/{file.path}") as source:
                found = (source.size(), pq.read_metadata(source).num_rows)  # reads the footer alone
        except (OSError, pa.ArrowException) as error:
            raise _refusal(location, file, str(error)) from error
        if found != (file.size_bytes, file.rows):
            raise _refusal(location, file, f"it has {found[1]} rows in {found[0]} bytes")

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(look, files))


def _refusal(location: Location, file: WrittenFile, why: str) -> StorageError:
    return StorageError(
        f"nothing is committed: a task wrote {file.path} with {file.rows} rows in {file.size_bytes} bytes, "
        f"which is not so in {location.uri}: {why}",
        hint="the driver and every worker must see the same directory or bucket as the table",
    )
