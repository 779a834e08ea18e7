"""What one topic of many costs in the log and in the table: CPU time and bytes read, without Spark's own part.

Each question asks for another topic, in a process that has answered others before, as Spark's workers have. Opening the
log and the table is measured apart. Bytes are those of read calls: what is read from mapped files is not counted.
"""

import os
from dataclasses import dataclass
from statistics import median
from time import process_time

from everlog.bench.measurement import Row, apart
from everlog.bench.store_suite import topic_names

QUESTIONS = 7
FIRST = 2  # of the questions, which are not counted


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question took: rows, CPU seconds of opening and of the rest, and megabytes."""

    rows: int
    open_s: float
    read_s: float
    read_mb: float


def one_topic_rows(data: str, topics: int) -> list[Row]:
    """Measure reading one topic of a store that is compacted."""
    rows: list[Row] = []
    costs = {}
    for tier in ("log", "table"):
        answers = apart(_answers, f"{tier}\n{topics}\n{data}")
        cost = costs[tier] = 1000 * median(one.read_s for one in answers)
        opened = 1000 * median(one.open_s for one in answers)
        note = f"{answers[0].rows:,} rows; opening it {opened:.0f} ms more"
        rows.append((f"one topic of {topics:,}, {tier}", cost, "ms CPU", note))
        rows.append((f"one topic of {topics:,}, {tier}", median(one.read_mb for one in answers), "MB read", ""))
    return [*rows, ("one topic, table against log", costs["table"] / costs["log"], "x", "CPU; at most 2 is demanded")]


def _answers(asked: str) -> list[Answer]:
    tier, topics, data = asked.split("\n")
    names = topic_names(int(topics))
    chosen = [names[number * len(names) // QUESTIONS] for number in range(QUESTIONS)]
    return [_answer(data, tier, name.decode()) for name in chosen][FIRST:]


def _answer(data: str, tier: str, topic: str) -> Answer:
    from pyspark.sql.types import StructType

    from everlog.spark import EverlogSource

    begun = process_time()
    source = EverlogSource({"path": data, "tier": tier, "topic": topic})
    schema = source.schema()
    assert isinstance(schema, StructType)  # as payloads are not decoded
    reader = source.reader(schema)
    opened, held = process_time(), _bytes_read()
    rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
    return Answer(rows, opened - begun, process_time() - opened, (_bytes_read() - held) / 1e6)


def _bytes_read() -> int:
    """Return what this process has read from files so far; 0 where the system does not tell."""
    if not os.path.exists("/proc/self/io"):
        return 0
    with open("/proc/self/io") as counts:
        return int(counts.readline().split()[1])
