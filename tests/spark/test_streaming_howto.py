"""The page on streams is followed to the letter."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.documents import PORT, Follower, blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs/howto/spark-streaming.md"


class StreamFollower(Follower):
    """Whose programs know where the broker is."""

    def python(self, block: str) -> None:
        super().python(block.replace(PORT, str(self.port)))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_page_on_streams_can_be_followed(spark: "SparkSession", tmp_path: Path) -> None:
    follower = StreamFollower(tmp_path)
    try:
        for kind, block in blocks(PAGE.read_text()):
            getattr(follower, kind)(block)
    finally:
        follower.leave()
