"""Shards in directories of their own: made there, found there by everything, and missed when their disk is."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess

from everlog.base import StorageError
from everlog.cli import main
from everlog.store import place_shards


def test_shards_are_made_on_other_disks_and_found_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disks = [tmp_path / "a", tmp_path / "b"]
    flags = ("--shards", "3", "--set", f"log.directories={disks[0]},{disks[1]}", "--set", "log.segment_age=1ms")
    with BrokerProcess(tmp_path, *flags) as broker:
        with broker.client() as client:
            client.connect("c")
            for number in range(20):
                client.publish(f"t/{number}", str(number), qos=1)
        broker.kill()
        assert sorted(path.name for path in disks[0].iterdir()) == ["shard-0", "shard-2"]
        assert [path.name for path in disks[1].iterdir()] == ["shard-1"]
        assert all(len(list(disk.glob("shard-*/*.log"))) > 2 for disk in disks), "segments by age"
        broker.start()
        with broker.client() as client:
            client.connect("c")
            client.subscribe("$replay/earliest/t/#")
            assert sorted(map(int, client.payloads(20))) == list(range(20))
        broker.stop()
        assert main(["verify", str(broker.data)]) == 0
        assert "shard-2" in capsys.readouterr().out
        disks[1].rename(tmp_path / "unmounted")
        command = [sys.executable, "-m", "everlog", "serve", "--data", str(broker.data), "--port", "0", *flags]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode != 0
        assert "which is not there" in ended.stderr
        assert "mount its disk" in ended.stderr
        assert not disks[1].exists()
        (tmp_path / "unmounted").rename(disks[1])
        broker.start()
        broker.client().close()


def test_a_shard_that_is_there_stays_and_nothing_is_taken_over(tmp_path: Path) -> None:
    data = tmp_path / "data"
    place_shards(str(data), 2, [str(tmp_path / "a")])
    place_shards(str(data), 2, [str(tmp_path / "b"), str(tmp_path / "a")])
    assert (data / "shard-0").resolve() == tmp_path / "a/shard-0"
    with pytest.raises(StorageError, match="is there"):
        place_shards(str(tmp_path / "other"), 1, [str(tmp_path / "a")])
