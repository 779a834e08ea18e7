"""A real server of Spark Connect reads and writes the log for a client that has no Java of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.cluster import connect_server
from tests.spark.history import T0_US, Sent, write_store

# Connect and a session with a context can't be in one process: the client is one of its own.
CLIENT = """
import json, sys
from everlog.spark import spark_session

data, table, state = sys.argv[1:]
spark = spark_session("client")
log = spark.read.format("everlog").load(data)
found = {"all": log.count()}
rows = spark.read.format("everlog").option("topic", "a/+").load(data).orderBy("shard", "offset").collect()
found["filtered"] = [[row.topic, bytes(row.payload).decode()] for row in rows]
stream = spark.readStream.format("everlog").option("from", "earliest").load(data)
query = stream.writeStream.format("everlog").option("checkpointLocation", state).trigger(availableNow=True).start(table)
query.awaitTermination()
found["table"] = spark.read.format("everlog").load(table).count()
print(json.dumps(found))
spark.stop()
"""


@pytest.mark.slow
def test_a_client_of_spark_connect_reads_streams_and_writes(tmp_path: Path) -> None:
    sent = [Sent(T0_US + number, topic, b"%d" % number) for number in range(50) for topic in ("a/b", "a/c/d")]
    data = write_store(tmp_path / "data", sent)
    with connect_server(tmp_path / "server") as address:
        environment = {**os.environ, "SPARK_REMOTE": address, "JAVA_HOME": "/nowhere"}
        client = subprocess.run(
            [sys.executable, "-c", CLIENT, str(data), str(tmp_path / "table"), str(tmp_path / "state")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert client.returncode == 0, client.stderr[:6000]
    found = json.loads(client.stdout.splitlines()[-1])
    assert found["all"] == found["table"] == len(sent)
    assert found["filtered"] == [["a/b", str(number)] for number in range(50)]
