"""What of pyspark is not in every version of it: all that differs between versions is here.

Streams need admission control, which came with pyspark 4.2, and so that is the lowest. Tests run on `TESTED`.
"""

from everlog.base import UsageError

TESTED = ("4.3.0",)
RANGE = ">=4.2,<4.4"

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        InputPartition,
        WriterCommitMessage,
    )
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    from importlib.metadata import version

    raise UsageError(
        f"pyspark {version('pyspark')} is not one that Everlog works with ({error})",
        hint=f"pip install 'pyspark{RANGE}'; tested with {', '.join(TESTED)}",
    ) from error

__all__ = [
    "RANGE",
    "TESTED",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
    "from_arrow_schema",
    "to_arrow_schema",
]
