"""The layout of the table: its columns, its partitions, the names of its files and of its transactions.

The table belongs to one store. A file of ours holds rows of one shard and one day whose offsets no other file's lie
between; what other programs rewrote may be otherwise. Files are never changed; a name is used once.
"""

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

from everlog.spark.schema import SCHEMA

PARTITION = "day"
FILE_SCHEMA = SCHEMA  # a partition's value is in the table's log, not in the files
TABLE_SCHEMA = SCHEMA.append(pa.field(PARTITION, pa.date32(), nullable=False))

# Properties of the table. A rewrite must replace files: some readers know nothing of deletion vectors.
STORE_PROPERTY = "everlog.store"
FORMAT_PROPERTY = "everlog.format"
FORMAT = "1"
PROPERTIES = {
    FORMAT_PROPERTY: FORMAT,
    "delta.enableDeletionVectors": "false",
    "delta.dataSkippingStatsColumns": "shard,offset,timestamp,topic,qos",
    "delta.checkpointInterval": "20",
}

DATA_SUFFIX = ".parquet"
TOPIC_SUFFIX = ".topics"
TOPIC_DIRECTORY = "_topics"

DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)


def shard_transaction(store: str, shard: int) -> str:
    """Return the transaction whose version is the end of a shard in the table: the first offset that is not in it."""
    return f"everlog/{store}/{shard}"


def start_transaction(store: str, shard: int) -> str:
    """Return the transaction whose version is where a shard begins in the table; that offset need not have a record."""
    return f"everlog/{store}/{shard}/start"


def lost_transaction(store: str, shard: int) -> str:
    """Return the transaction whose version counts the holes of a shard: what retention removed before it was here."""
    return f"everlog/{store}/{shard}/lost"


def hole_transactions(store: str, shard: int, number: int) -> tuple[str, str]:
    """Return the transactions whose versions are a hole's first offset and the first after it; holes count from 1."""
    name = f"{lost_transaction(store, shard)}/{number}"
    return f"{name}/from", f"{name}/to"


def rewrite_transaction(store: str) -> str:
    """Return the transaction of every commit that removes files; its version counts them.

    All rewrites share it, as two commits that remove the same file do not conflict by themselves.
    """
    return f"everlog/{store}/rewrite"


def data_path(day: str, shard: int, first_offset: int, token: str) -> str:
    """Return the path of a file in the table; the token is new for every attempt to write it."""
    return f"{PARTITION}={day}/shard-{shard}-{first_offset:020d}-{token}{DATA_SUFFIX}"


def is_own_path(path: str) -> bool:
    """Return whether a file has a name of ours: another program that rewrites files gives them names of its own."""
    return path.rpartition("/")[2].startswith("shard-")


def topic_path(path: str) -> str:
    """Return the path of a data file's topic file; what begins with an underscore is no file of the table."""
    return f"{TOPIC_DIRECTORY}/{path.removesuffix(DATA_SUFFIX)}{TOPIC_SUFFIX}"


def data_path_of(topics: str) -> str:
    """Return the path of the data file that a topic file belongs to."""
    return topics.removeprefix(f"{TOPIC_DIRECTORY}/").removesuffix(TOPIC_SUFFIX) + DATA_SUFFIX


def day_number(time_us: int) -> int:
    """Return the day of a time, in days since 1970."""
    return time_us // DAY_US


def day_text(number: int) -> str:
    """Return a day as the table writes it."""
    return (_EPOCH + timedelta(days=number)).isoformat()


def time_text(time_us: int) -> str:
    """Return a time as the table's statistics have it."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def time_us_of(moment: datetime) -> int:
    """Return the exact number of microseconds since 1970."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
