"""Streams and key-value stores of a real `everlog serve`, by the command line and by rules."""

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.broker_process import PATIENCE_S, BrokerProcess
from tests.listening import eventually
from tests.nats_servers import NatsServer, needs_nats
from tests.persist_process import PersistProcess
from tests.system.serving import Served

from everlog.broker import set_password
from everlog.cli import main
from everlog.client import TimedOut, connect_blocking


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("streams") / "data") as broker:
        yield broker


class Shell:
    """`everlog` commands on one bus."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = url
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        self._capsys.readouterr()
        status = main([*words, "--bus", self._url, "--timeout", str(PATIENCE_S)])
        found = self._capsys.readouterr()
        assert status == code, found.err
        return found.out if code == 0 else found.err

    def lines(self, *words: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self(*words, "--json").splitlines()]


@pytest.fixture
def shell(served: Served, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(f"mqtt://127.0.0.1:{served.port}", capsys)


def test_a_broker_starts_no_persist_server_before_it_is_used(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as broker, connect_blocking(f"mqtt://127.0.0.1:{broker.port}", timeout_s=PATIENCE_S):
        assert (tmp_path / "data" / "persist" / "persist.json").exists()
        assert not (tmp_path / "data" / "persist" / "shard-0").exists()  # nothing was asked of it yet
    with Served(tmp_path / "other") as broker:
        assert broker.metrics()["connections"] == 0
        assert not (tmp_path / "other" / "persist").exists()


def test_streams_by_the_command_line(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shell("stream", "append", "to-do", "milk") == "1\n"
    (written,) = shell.lines("stream", "append", "to-do", "bread", "-H", "who=anne", "--ttl", "1d", "--id", "x")
    assert (written["seq"], written["duplicate"]) == (2, False)
    assert shell.lines("stream", "append", "to-do", "bread", "--id", "x")[0]["duplicate"] is True
    assert [line["value"] for line in shell.lines("stream", "list", "to-do")] == ["milk", "bread"]
    assert shell.lines("stream", "get", "to-do", "2")[0]["headers"] == {"who": "anne"}
    assert shell("stream", "get", "to-do", "1") == "milk"
    (tmp_path / "big").write_bytes(bytes(range(256)) * 8192)
    assert shell("stream", "append", "to-do", "-f", str(tmp_path / "big")) == "3\n"
    assert "(2,097,152 bytes)" in shell("stream", "list", "to-do", "--from", "3")
    events = shell.lines("stream", "watch", "to-do", "-C", "3")
    assert [event["event"] for event in events] == ["set", "set", "set"]
    assert shell("stream", "delete", "to-do", "3") == "1 deleted\n"
    info = shell.lines("stream", "info", "to-do")[0]
    assert (info["messages"], info["last_seq"], info["kind"]) == (2, 3, "stream")
    assert "messages   2" in shell("stream", "info", "to-do")
    assert shell.lines("stream", "download", "to-do", str(tmp_path / "to-do.db"))[0]["bytes"]
    with closing(sqlite3.connect(tmp_path / "to-do.db")) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    with (tmp_path / "lines").open("w+") as file:
        file.write("a\nb\n")
        file.seek(0)
        monkeypatch.setattr(sys, "stdin", file)
        assert shell("stream", "append", "to-do", "-l") == "2 messages, the last is 5\n"
    assert shell("stream", "delete", "to-do", "--up-to", "4") == "3 deleted\n"
    assert shell("stream", "delete", "to-do", "--remove") == "removed\n"
    assert "write to it" in shell("stream", "get", "to-do", "1", code=1)


def test_key_value_stores_by_the_command_line(shell: Shell) -> None:
    assert shell("kv", "create", "settings", "color", "blue") == "1\n"
    assert "has a value" in shell("kv", "create", "settings", "color", "red", code=1)
    assert shell("kv", "put", "settings", "color", "red", "--revision", "1") == "2\n"
    assert "revision" in shell("kv", "put", "settings", "color", "green", "--revision", "1", code=1)
    assert shell("kv", "get", "settings", "color") == "red"
    assert shell.lines("kv", "get", "settings", "color")[0]["revision"] == 2
    assert "kv keys" in shell("kv", "get", "settings", "nothing", code=1)
    shell("kv", "put", "settings", "shape", "round")
    assert shell("kv", "keys", "settings") == "color\nshape\n"
    assert shell("kv", "keys", "settings", "s", "--values") == "shape\tround\n"
    assert [line["key"] for line in shell.lines("kv", "watch", "settings", "-C", "2")] == ["color", "shape"]
    assert shell("kv", "delete", "settings", "shape") == "deleted\n"
    assert shell("kv", "delete", "settings", "shape") == "it was not there\n"


def test_the_status_names_the_server(shell: Shell) -> None:
    (found,) = shell.lines("persist", "status")
    assert (found["server"], found["owned"]) == ("everlog serve", [0])
    assert "everlog serve" in shell("persist", "status")


def test_wrong_words_are_told(shell: Shell, tmp_path: Path) -> None:
    assert "give a VALUE" in shell("stream", "append", "s", code=2)
    assert "which messages" in shell("stream", "delete", "s", code=2)
    assert "empty level" in shell("stream", "append", "a//b", "x", code=2)
    assert "KEY=VALUE" in shell("stream", "append", "s", "x", "-H", "y", code=2)
    assert "two places" in shell("stream", "info", "s", "--data", str(tmp_path), code=2)
    assert main(["stream", "info", "s", "--bus", "http://x"]) == 2
    assert main(["persist", "serve", "--data", str(tmp_path), "--bus", "mqtt://127.0.0.1:1"]) == 1


def test_a_directory_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", "append", "s", "x", "--data", str(tmp_path / "d")]) == 0
    assert main(["stream", "list", "s", "--json", "--data", str(tmp_path / "d")]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[1])["value"] == "x"


@needs_nats
def test_a_server_of_its_own_over_nats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with NatsServer(tmp_path) as nats, PersistProcess(tmp_path, nats.url, "--shards", "4", "--name", "mine") as server:
        shell = Shell(nats.url, capsys)
        assert shell("stream", "append", "s", "x") == "1\n"
        (found,) = shell.lines("persist", "status")
        assert (found["server"], found["owned"]) == ("mine", [0, 1, 2, 3])
        server.stop()
        server.start()
        assert shell("stream", "get", "s", "1") == "x"


@needs_nats
def test_a_server_on_shared_storage_is_set_up_by_a_file_and_drained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage, config = tmp_path / "shared", tmp_path / "persist.toml"
    config.write_text(f'[persist]\nstorage = "{storage}"\nshards = 2\nname = "one"\n')
    with NatsServer(tmp_path) as nats, PersistProcess(tmp_path, nats.url, "--config", str(config)) as server:
        shell = Shell(nats.url, capsys)
        assert shell("stream", "append", "s", "x", "--level", "archived") == "1\n"
        # A server whose disk hangs for longer than the others' patience loses its shards, and takes them again.
        eventually(lambda: len(shell.lines("persist", "status")[0]["epochs"]) == 2, "both shards", PATIENCE_S)
        (found,) = shell.lines("persist", "status")
        assert (found["server"], set(found["epochs"]), found["is_coordinator"]) == ("one", {"0", "1"}, True)
        assert "coordinator" in shell("persist", "status")
        assert main(["persist", "drain", "two", "--config", str(config)]) == 2
        assert main(["persist", "drain", "one", "--config", str(config), "--json"]) == 0
        server.await_end()
        assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"server": "one", "owned": [], "done": True}
        flags = ["--data", str(server.data), "--bus", nats.url]
        assert main(["persist", "serve", *flags, "--storage", str(tmp_path / "other")]) == 2
        assert "belongs to other storage" in capsys.readouterr().err
        server.start()
        assert shell("stream", "get", "s", "1") == "x"


def test_a_server_beside_a_broker_that_serves_streams_itself_is_refused(
    shell: Shell, served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell("persist", "status")
    assert main(["persist", "serve", "--data", str(tmp_path), "--bus", f"mqtt://127.0.0.1:{served.port}"]) == 2
    assert "persist.enabled" in capsys.readouterr().err
    assert main(["persist", "serve", "--data", str(tmp_path)]) == 2
    assert "--bus URL" in capsys.readouterr().err


def test_rules_of_the_broker_say_who_may_reach_which_stream(tmp_path: Path) -> None:
    rules, passwords = tmp_path / "rules.acl", tmp_path / "users"
    rules.write_text(
        "user * read response/%c/#\nuser * read everlog/p/+/up\nuser * write everlog/p/hello\n"
        "user anne write everlog/p/+/r/team/#\nuser anne read everlog/p/+/f/team/#\n"
        "user anne write everlog/p/+/w/team/#\nuser bert write everlog/p/+/r/team/#\n"
    )
    for name in ("anne", "bert"):
        set_password(str(passwords), name, "secret")
    flags = ("--acl-file", str(rules), "--password-file", str(passwords))
    with BrokerProcess(tmp_path, *flags) as broker:
        anne, bert = (f"mqtt://{name}:secret@127.0.0.1:{broker.port}" for name in ("anne", "bert"))
        eventually(lambda: main(["persist", "status", "--bus", anne, "--timeout", "20"]) == 0, "the broker", PATIENCE_S)
        with connect_blocking(anne, timeout_s=PATIENCE_S) as client:
            assert client.stream("team/log").append(b"x").seq == 1
            watch = iter(client.stream("team/log").watch())
            assert next(watch).message.value == b"x"
            watch.close()
        with connect_blocking(bert, timeout_s=PATIENCE_S) as client:
            assert client.stream("team/log").get(1).value == b"x"
        with connect_blocking(anne, timeout_s=0.5) as client, pytest.raises(TimedOut, match="may this user"):
            client.stream("private").append(b"x")
        with connect_blocking(bert, timeout_s=0.5) as client, pytest.raises(TimedOut):
            client.stream("team/log").append(b"y")
