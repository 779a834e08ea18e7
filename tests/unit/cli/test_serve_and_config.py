import io
import subprocess
import sys
import tomllib
import types

import pytest

from everlog.app import Settings, load
from everlog.broker.auth.passwords import Passwords, read_passwords
from everlog.cli import main


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def served(monkeypatch):
    """The settings that `everlog serve` would have started with."""
    seen = []
    fake = types.ModuleType("everlog.app.serve")
    fake.run = lambda settings, config: seen.append(settings) or 0
    monkeypatch.setitem(sys.modules, "everlog.app.serve", fake)
    return seen


def test_serve_without_flags_is_the_defaults(served):
    assert main(["serve"]) == 0
    assert served == [Settings()]


def test_the_flags_that_outside_checks_use(served):
    words = (
        "serve --port 1999 --host localhost --data d --durability flush --keep a/# --keep b --shards 4 --http-port 0"
    )
    assert main([*words.split(), "--log-format", "json"]) == 0
    settings = served[0]
    assert (settings.listener.port, settings.listener.host) == (1999, "localhost")
    assert (settings.log.data, settings.log.durability, settings.log.shards) == ("d", "flush", 4)
    assert settings.keep.filters == ("a/#", "b")
    assert settings.http.port == 0
    assert settings.logging.format == "json"


def test_every_setting_has_a_way_from_the_command_line(served):
    assert main(["serve", "--set", "limits.connections=5", "--set", "sys.interval=1m", "--no-anonymous"]) == 0
    assert served[0].limits.connections == 5
    assert served[0].sys.interval == 60
    assert served[0].security.allow_anonymous is False


def test_serve_starts_nothing_with_bad_settings(served, capsys):
    assert main(["serve", "--port", "x", "--durability", "fsnc", "--set", "limits.conections=1"]) == 2
    assert served == []
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("everlog: --") for line in lines)


def test_set_needs_a_value(served, capsys):
    assert main(["serve", "--set", "limits.connections"]) == 2
    assert "KEY=VALUE" in capsys.readouterr().err


def test_serve_refuses_to_be_open_to_the_world(served, capsys):
    assert main(["serve", "--host", "0.0.0.0"]) == 2
    assert "password_file" in capsys.readouterr().err
    assert main(["serve", "--host", "0.0.0.0", "--allow-anonymous"]) == 0


def test_config_show_says_who_set_what(tmp_path, monkeypatch, capsys):
    (tmp_path / "everlog.toml").write_text("[log]\nshards = 2\n")
    monkeypatch.setenv("EVERLOG_LOG_RETENTION_AGE", "36h")
    assert main(["config", "show"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["log.shards", "2", "everlog.toml:", "log.shards"] in lines
    assert ["log.retention_age", "36h", "EVERLOG_LOG_RETENTION_AGE"] in lines
    assert ["listener.port", "1883", "default"] in lines
    assert main(["config", "show", "--changed"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_config_show_toml_is_a_file_that_says_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EVERLOG_KEEP_FILTERS", "a/#,b")
    monkeypatch.setenv("EVERLOG_LIMITS_QUEUE_BYTES", "5KB")
    before = load().settings
    assert main(["config", "show", "--toml"]) == 0
    text = capsys.readouterr().out
    tomllib.loads(text)
    (tmp_path / "all.toml").write_text(text.replace('data = "everlog-data"', f'data = "{tmp_path}/x"'))
    after = load("all.toml", environ={}).settings
    assert after.limits == before.limits
    assert after.keep == before.keep
    assert (after.listener, after.security, after.http) == (before.listener, before.security, before.http)


def test_config_check(tmp_path, capsys):
    assert main(["config", "check"]) == 0
    assert "no everlog.toml: good" in capsys.readouterr().out
    (tmp_path / "mine.toml").write_text("[log]\nshards = 2\n")
    assert main(["config", "check", "mine.toml"]) == 0
    assert "mine.toml: good, 1 setting given" in capsys.readouterr().out
    (tmp_path / "mine.toml").write_text("[log]\nshard = 2\n")
    assert main(["config", "check", "mine.toml"]) == 2
    assert "did you mean shards?" in capsys.readouterr().err


def test_config_check_reads_the_files_that_are_named(tmp_path, capsys):
    (tmp_path / "acl").write_text("everyone raed #\n")
    (tmp_path / "everlog.toml").write_text("[security]\nacl_file = 'acl'\n")
    assert main(["config", "check"]) == 2
    assert "acl:1:10:" in capsys.readouterr().err


def say(monkeypatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_passwd_adds_changes_and_deletes(monkeypatch, capsys):
    say(monkeypatch, b"one\nignored\n")
    assert main(["passwd", "users", "ann", "--password-stdin"]) == 0
    assert Passwords(read_passwords("users").hashes).check("ann", b"one")
    say(monkeypatch, b"two")
    assert main(["passwd", "users", "ann", "--password-stdin"]) == 0
    assert Passwords(read_passwords("users").hashes).check("ann", b"two")
    assert main(["passwd", "users", "-D", "ann"]) == 0
    assert read_passwords("users").hashes == {}
    assert capsys.readouterr().out == "users: ann added\nusers: ann changed\nusers: ann deleted\n"


def test_passwd_without_a_terminal_says_what_to_do(monkeypatch, capsys):
    say(monkeypatch, b"")
    assert main(["passwd", "users", "ann"]) == 2
    assert "--password-stdin" in capsys.readouterr().err


def test_passwd_of_an_empty_password_changes_nothing(monkeypatch, capsys, tmp_path):
    say(monkeypatch, b"\n")
    assert main(["passwd", "users", "ann", "--password-stdin"]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["file", "/proc/within"])
def test_a_data_directory_that_can_not_be_one_is_said_in_one_line(tmp_path, where):
    (tmp_path / "file").write_bytes(b"")
    words = [sys.executable, "-m", "everlog", "serve", "--data", where, "--port", "0", "--http-port", "none"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"everlog: {where} can't be used as a data directory: ")
    assert line.endswith("(give a directory that this user may write to)")


def test_a_path_that_can_not_be_read_is_said_in_one_line(tmp_path, capsys):
    (tmp_path / "shard-0").write_bytes(b"")
    assert main(["verify", "."]) == 2
    line = capsys.readouterr().err.splitlines()[-1]  # behind what showed the progress
    assert line == "everlog: shard-0/mark: Not a directory (is the path right, and may this user read it?)"
