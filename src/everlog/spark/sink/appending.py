"""What `foreachBatch` calls to append a micro-batch to a Delta table once."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def append_batch(frame: "DataFrame", table: str, app: str, batch: int) -> None:
    """Append the rows of an application's batch, unless the table has it: tasks write, the driver commits."""
    frame.write.format("everlog").mode("append").options(table=table, app=app, batch=str(batch)).save()
