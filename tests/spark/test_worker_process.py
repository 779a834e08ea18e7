"""Processes that Spark forks for tasks settle in; others are left as they are."""

import gc
from typing import TYPE_CHECKING

import pyarrow as pa

from everlog.spark.worker_process import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settled(number: int) -> tuple[int, str]:
    settle()
    settle()
    return gc.get_freeze_count(), pa.default_memory_pool().backend_name


def test_a_worker_keeps_its_memory_and_leaves_what_is_loaded_alone(spark: "SparkSession") -> None:
    ((frozen, pool),) = spark.sparkContext.parallelize([0], 1).map(settled).collect()
    assert frozen > 10_000
    assert pool == "system"


def test_a_process_of_another_kind_stays_as_it_is() -> None:
    before = gc.get_freeze_count(), pa.default_memory_pool().backend_name
    assert settled(0) == before
