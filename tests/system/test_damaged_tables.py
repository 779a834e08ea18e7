"""Damage in `sessions.db`: one retained message is set aside, and `everlog verify` names what it finds."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess

from everlog.cli import main


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement).rowcount == 1


def test_a_damaged_retained_message_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with BrokerProcess(tmp_path, "--set", "keep.filters=[]") as broker:
        tables = broker.data / "sessions.db"
        with broker.client() as client:
            client.connect("c")
            for topic in "abc":
                client.publish(topic, f"of {topic}", qos=1, retain=True)
        broker.stop()
        assert main(["verify", str(broker.data)]) == 0
        assert "sessions.db" in capsys.readouterr().out
        change(tables, "UPDATE retained SET message = CAST(substr(message, 1, 70) AS BLOB) WHERE topic = 'b'")
        assert main(["verify", str(broker.data)]) == 1
        assert "the retained message of 'b' can't be read" in capsys.readouterr().out
        broker.start()
        with broker.client() as client:
            client.connect("c")
            client.subscribe("+", qos=1)
            assert {message.topic for message in (client.message(), client.message())} == {"a", "c"}
            client.publish("b", "again", qos=1, retain=True)
        assert main(["verify", str(broker.data)]) == 0, "while the broker runs, too"
