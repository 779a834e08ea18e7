"""The tutorial is followed to the letter: its commands are run, and what it says they print is what they print."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.documents import Follower, blocks

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial/spark.md"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_tutorial_can_be_followed(spark: SparkSession, tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    try:
        for kind, block in blocks(TUTORIAL.read_text()):
            if kind != "sh":
                getattr(follower, kind)(block)
    finally:
        follower.leave()
    assert (tmp_path / "structure.html").exists()
    assert (tmp_path / "stats.html").exists()
