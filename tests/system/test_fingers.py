"""What Mosquitto's users' fingers know, and what is told when a port is not what a client takes it for."""

import os
import pty
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess
from tests.certificates import Authority

from everlog.base import UsageError
from everlog.bench.load.brokers import free_port
from everlog.cli import main
from everlog.cli.begin_words import exact_begin


def run(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "everlog", *arguments]
    return subprocess.run(command, input=data, capture_output=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory):
    """A broker with a listener of each kind: ports of tcp, tls, ws and http, and the authority's file."""
    directory = tmp_path_factory.mktemp("broker")
    authority = Authority(directory, "authority")
    pair = authority.issue("server")
    tls, ws, http, mutual = (free_port() for _ in range(4))
    flags = ["--tls-port", str(tls), "--websocket-port", str(ws), "--cert-file", pair.cert, "--key-file", pair.key]
    asked = f"listener.more=tls://127.0.0.1:{mutual}?require_client_cert=true&client_ca_file={authority.cert}"
    with BrokerProcess(directory, *flags, "--http-port", str(http), "--set", asked) as broker:
        broker.client().close()
        yield {
            "tcp": broker,
            "tls": tls,
            "mutual": mutual,
            "ws": ws,
            "http": http,
            "ca": authority.cert,
            "data": broker.data,
        }


def test_properties_of_every_packet(ports) -> None:
    port = str(ports["tcp"].port)
    with ports["tcp"].client() as client:
        client.connect("c")
        client.subscribe("d")
        words = ["-D", "publish", "content-type", "text/plain", "-D", "publish", "user-property", "a", "b=c"]
        words += ["-D", "publish", "message-expiry-interval", "60", "-D", "connect", "receive-maximum", "9"]
        done = run("pub", "-p", port, "-A", "127.0.0.1", "-t", "d", "-m", "x", *words, "-d")
        assert done.returncode == 0, done.stderr
        assert b"sends CONNECT" in done.stderr
        assert b"receives CONNACK" in done.stderr
        assert b"sends PUBLISH d (q0, r0, m0, 1 bytes)" in done.stderr
        found = client.message().properties
        assert (found.content_type, found.user_properties) == ("text/plain", (("a", "b=c"),))
        assert found.message_expiry_interval in (59, 60)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("publish", "content-type"), "sets no property"),
        (("other", "content-type", "x"), "sets no property"),
        (("publish", "nothing", "x"), "there is no property"),
        (("publish", "message-expiry-interval", "x"), "is a number"),
        (("publish", "receive-maximum", "9"), "receive"),
        (("will", "content-type", "x"), "without a will"),
    ],
)
def test_a_property_that_is_none_is_refused(words: tuple[str, ...], told: str, capsys) -> None:
    assert main(["pub", "-t", "t", "-m", "x", "-D", *words]) == 2
    assert told in capsys.readouterr().err


def test_quiet_says_nothing(capsys) -> None:
    assert main(["pub", "-p", "1", "-t", "t", "-m", "x", "--quiet"]) == 1
    assert capsys.readouterr().err == ""


def test_retained_messages_are_removed_and_json_is_pretty(ports) -> None:
    port = str(ports["tcp"].port)
    for topic in ("r/1", "r/2"):
        assert run("pub", "-p", port, "-t", topic, "-m", topic, "-r", "-q", "1").returncode == 0
    done = run("sub", "-p", port, "-t", "r/#", "-C", "2", "--remove-retained", "-F", "%j", "--pretty")
    assert (done.returncode, done.stdout.count(b'\n  "topic": "r/')) == (0, 2)
    assert run("sub", "-p", port, "-t", "r/#", "-W", "0.3").stdout == b""


def test_a_url_may_be_of_a_websocket(ports) -> None:
    url = f"ws://127.0.0.1:{ports['ws']}/w/t"
    assert run("pub", "-L", url, "-m", "over a websocket", "-r", "-q", "1").returncode == 0
    done = run("sub", "-L", url, "-C", "1")
    assert (done.returncode, done.stdout) == (0, b"over a websocket\n")
    refused = run("pub", "-L", f"ws://127.0.0.1:{ports['http']}/t", "-m", "x")
    assert (refused.returncode, b"can't connect" in refused.stderr) == (1, True)


def test_tls_and_plain_ports_are_told_apart(ports, tmp_path: Path) -> None:
    done = run("pub", "-h", "localhost", "-p", str(ports["tls"]), "--capath", str(tmp_path), "-t", "t", "-m", "x")
    assert (done.returncode, b"--cafile" in done.stderr) == (1, True)
    done = run("pub", "-h", "localhost", "-p", str(ports["tls"]), "--cafile", str(ports["ca"]), "-t", "t", "-m", "x")
    assert done.returncode == 0, done.stderr
    refused = run(
        "pub", "-h", "localhost", "-p", str(ports["mutual"]), "--cafile", str(ports["ca"]), "-t", "t", "-m", "x"
    )
    assert (refused.returncode, b"--cert and --key name ours" in refused.stderr) == (1, True), refused.stderr
    plain = run("pub", "-p", str(ports["tls"]), "-t", "t", "-m", "x")
    assert (plain.returncode, b"does the port speak TLS?" in plain.stderr) == (1, True), plain.stderr
    secure = run("pub", "-p", str(ports["tcp"].port), "--cafile", str(ports["ca"]), "-t", "t", "-m", "x")
    assert (secure.returncode, b"is it the plain port?" in secure.stderr) == (1, True), secure.stderr


def test_days_have_names(ports) -> None:
    port = str(ports["tcp"].port)
    assert run("pub", "-p", port, "-t", "day", "-m", "today's", "-q", "1").returncode == 0
    done = run("sub", "-p", port, "-t", "day", "--from", "yesterday", "-C", "1")
    assert (done.returncode, done.stdout) == (0, b"today's\n"), done.stderr
    assert run("replay", "-p", port, "--from", "2026-01-01", "day").stdout == b"today's\n"


def test_a_day_begins_where_the_command_runs() -> None:
    now = datetime(2026, 3, 1, 12, 30).astimezone()
    assert exact_begin("today", now) == datetime(2026, 3, 1).astimezone().isoformat()
    assert exact_begin("yesterday", now) == datetime(2026, 2, 28).astimezone().isoformat()
    assert exact_begin("2026-01-31", now).startswith("2026-01-31T00:00:00")
    assert exact_begin("-24h", now) == "-24h"
    with pytest.raises(UsageError, match="there is no day"):
        exact_begin("2026-02-30")


def test_the_data_directory_is_that_of_the_settings(ports, monkeypatch, capsys) -> None:
    monkeypatch.setenv("EVERLOG_LOG_DATA", str(ports["data"]))
    with ports["tcp"].client() as client:
        client.connect("away", clean_start=False, expiry=600)
        client.subscribe("here/#", qos=1)
        client.publish("here/is", b"it", qos=1)
    for command in (["verify"], ["log", "segments"], ["sessions", "list"], ["clock"]):
        assert main(command) == 0, capsys.readouterr().err
    for data in ([], [str(ports["data"])]):  # the same words with and without it
        for command in ("topics", "tail", "dump"):
            assert main(["log", command, *data, "here/+"]) == 0, capsys.readouterr().err
            assert "here/is" in capsys.readouterr().out
        assert main(["sessions", "show", *data, "away"]) == 0, capsys.readouterr().err
        assert "here/#" in capsys.readouterr().out
    assert main(["log", "tail", "here/is"]) == 2
    assert "here/is holds no store" in capsys.readouterr().err


@pytest.mark.parametrize("job", ["structure", "stats", "replay", "compact", "vacuum"])
def test_jobs_on_spark_take_the_data_directory_of_the_settings(job, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("EVERLOG_LOG_DATA", str(tmp_path / "of-the-settings"))
    assert main(["spark", job]) == 2  # at once, without starting Spark
    assert "of-the-settings" in capsys.readouterr().err


def test_top_ends_at_q_and_takes_an_address_without_a_scheme(ports) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "everlog", "top", "--url", f"127.0.0.1:{ports['http']}", "--interval", "60"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"connections" not in seen:
        seen += os.read(ours, 4096)
    os.write(ours, b"q")
    assert process.wait(30) == 0
    os.close(ours)
