"""`everlog pub` and `everlog sub` as processes, against a broker and clients that others wrote."""

import queue
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
CLIENTS = shutil.which("mosquitto_pub") and shutil.which("mosquitto_sub")
PATIENCE_S = 60

pytestmark = pytest.mark.skipif(not (MOSQUITTO and CLIENTS), reason="mosquitto is not installed")

EVERLOG = [sys.executable, "-m", "everlog"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Broker:
    """A mosquitto process whose log can be waited for."""

    def __init__(self, directory: Path, config: str = "", *, anonymous: bool = True) -> None:
        self.port = free_port()
        path = directory / "mosquitto.conf"
        path.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous {str(anonymous).lower()}\nlog_type all\n"
            f"log_dest stderr\nmax_queued_messages 0\nuser root\n{config}"
        )
        self.subscribers: list[Sub] = []
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process = subprocess.Popen([MOSQUITTO, "-c", str(path)], stderr=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        self.wait_for("running")

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.put(line)
        self.lines.put(None)

    def wait_for(self, words: str) -> str:
        seen = []
        while (line := self.lines.get(timeout=PATIENCE_S)) is not None:
            if words in line:
                return line
            seen.append(line)
        raise AssertionError(f"mosquitto ended before {words!r}: {''.join(seen)}")

    def stop(self) -> None:
        """End it and, behind it, the subscribers that a failed test has left."""
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        for sub in self.subscribers:
            sub.stop()
        self.reader.join(PATIENCE_S)
        self.process.stderr.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    broker = Broker(tmp_path_factory.mktemp("mosquitto"))
    yield broker
    broker.stop()


def run(command: str, broker: Broker, *words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*EVERLOG, command, "-h", "127.0.0.1", "-p", str(broker.port), *words],
        input=b"" if stdin is None else stdin,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )


def pub(broker: Broker, *words: str, stdin: bytes | None = None) -> None:
    done = run("pub", broker, *words, stdin=stdin)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


class Sub:
    """A subscriber that has its SUBACK when the constructor returns."""

    def __init__(self, broker: Broker, name: str, *words: str, program: list[str] | None = None) -> None:
        command = [*(program or [*EVERLOG, "sub"]), "-h", "127.0.0.1", "-p", str(broker.port), "-i", name, *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        broker.subscribers.append(self)
        broker.wait_for(f"Sending SUBACK to {name}")

    def lines(self) -> list[bytes]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, err
        return out.splitlines()

    def stop(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()


@pytest.mark.parametrize("version", ["31", "311", "5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_messages_arrive_in_order_at_every_version_and_qos(broker, version, qos):
    topic = f"order/{version}/{qos}"
    sub = Sub(broker, f"s{version}{qos}", "-t", topic, "-q", qos, "-V", version, "-C", "500", "-F", "%q %p")
    lines = [b"%d" % number for number in range(500)]
    pub(broker, "-t", topic, "-q", qos, "-V", version, "-l", stdin=b"\n".join(lines))
    assert sub.lines() == [b"%s %s" % (qos.encode(), line) for line in lines]


@pytest.mark.parametrize("version", ["311", "5"])
def test_their_publisher_our_subscriber_and_the_other_way(broker, version):
    topic = f"interop/{version}"
    ours = Sub(broker, f"ours{version}", "-t", topic, "-q", "2", "-V", version, "-C", "2", "-v")
    theirs = Sub(
        broker, f"theirs{version}", "-t", topic, "-q", "2", "-V", version, "-C", "2", "-v", program=["mosquitto_sub"]
    )
    words = ["-h", "127.0.0.1", "-p", str(broker.port), "-t", topic, "-V", version, "-q", "1", "-m", "from theirs"]
    subprocess.run(["mosquitto_pub", *words], check=True, timeout=PATIENCE_S)
    pub(broker, "-t", topic, "-V", version, "-q", "2", "-m", "from ours")
    expected = [f"{topic} from theirs".encode(), f"{topic} from ours".encode()]
    assert ours.lines() == expected
    assert theirs.lines() == expected


def test_a_large_payload_from_a_file_and_from_standard_input(broker, tmp_path):
    payload = bytes(range(256)) * 4096
    path = tmp_path / "payload"
    path.write_bytes(payload)
    sub = Sub(broker, "large", "-t", "large", "-q", "1", "-C", "2", "-N")
    pub(broker, "-t", "large", "-q", "1", "-f", str(path))
    pub(broker, "-t", "large", "-q", "1", "-s", stdin=payload)
    assert sub.process.communicate(timeout=PATIENCE_S)[0] == payload * 2


def test_retained_messages_are_set_skipped_and_deleted(broker):
    pub(broker, "-t", "kept/a", "-r", "-m", "old", "-q", "1")
    assert run("sub", broker, "-t", "kept/#", "-C", "1", "-F", "%r %p").stdout == b"1 old\n"
    sub = Sub(broker, "fresh", "-t", "kept/#", "-R", "-C", "1")
    pub(broker, "-t", "kept/a", "-m", "new", "-q", "1")
    assert sub.lines() == [b"new"]
    pub(broker, "-t", "kept/a", "-r", "-n", "-q", "1")
    sub = Sub(broker, "gone", "-t", "kept/#", "-C", "1")
    pub(broker, "-t", "kept/a", "-m", "live", "-q", "1")
    assert sub.lines() == [b"live"]


@pytest.mark.parametrize("version", ["311", "5"])
def test_a_kept_session_gets_the_rest_of_what_it_missed(broker, version):
    me = ["-t", f"missed/{version}", "-q", "1", "-c", "-i", f"keeper{version}", "-V", version]
    assert run("sub", broker, *me, "-E").returncode == 0
    pub(broker, "-t", f"missed/{version}", "-q", "1", "-l", stdin=b"1\n2\n3\n4\n")
    assert run("sub", broker, *me, "-C", "3").stdout == b"1\n2\n3\n"
    assert run("sub", broker, *me, "-C", "1").stdout == b"4\n"


def test_user_properties_travel(broker):
    sub = Sub(broker, "props", "-t", "props", "-C", "1", "-F", "%P %p")
    pub(broker, "-t", "props", "-m", "x", "--user-property", "a=1", "--user-property", "b=2", "-q", "1")
    assert sub.lines() == [b"a:1 b:2 x"]


def test_filtered_out_and_repeated_messages(broker):
    sub = Sub(broker, "filtered", "-t", "f/#", "-T", "f/noise/#", "-C", "3", "-v")
    pub(broker, "-t", "f/noise/1", "-m", "no")
    pub(broker, "-t", "f/signal", "-m", "yes", "--repeat", "3")
    assert sub.lines() == [b"f/signal yes"] * 3


def test_time_is_up_with_code_27(broker):
    done = run("sub", broker, "-t", "nothing/here", "-W", "0.2")
    assert (done.returncode, done.stdout, done.stderr) == (27, b"", b"")


def test_a_lost_subscribers_will_is_published(broker):
    heir = Sub(broker, "heir", "-t", "wills/#", "-C", "1", "-v")
    dying = Sub(broker, "dying", "-t", "x", "--will-topic", "wills/dying", "--will-payload", "farewell")
    dying.process.kill()
    dying.process.communicate()
    assert heir.lines() == [b"wills/dying farewell"]


def test_the_end_of_the_broker_ends_a_subscriber_that_does_not_reconnect(tmp_path):
    broker = Broker(tmp_path)
    sub = Sub(broker, "orphan", "-t", "x", "--no-reconnect")
    broker.subscribers.clear()
    broker.stop()
    out, err = sub.process.communicate(timeout=PATIENCE_S)
    assert sub.process.returncode == 1
    assert out == b""
    assert err.startswith(b"everlog: ")
    assert err.count(b"\n") == 1


@pytest.fixture
def guarded(tmp_path):
    """A broker with one user, who may do little."""
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(tmp_path / "users"), "ann", "pw"], check=True)
    (tmp_path / "acl").write_text("user ann\ntopic readwrite mine/#\n")
    for name in ("users", "acl"):
        (tmp_path / name).chmod(0o600)
    broker = Broker(tmp_path, f"password_file {tmp_path}/users\nacl_file {tmp_path}/acl\n", anonymous=False)
    yield broker
    broker.stop()


def test_refusals_are_said_and_have_code_1(guarded):
    ann = ["-u", "ann", "-P", "pw"]
    pub(guarded, *ann, "-t", "mine/x", "-m", "1", "-q", "2")
    denied = run("pub", guarded, *ann, "-t", "other/x", "-m", "1", "-q", "1")
    assert (denied.returncode, b"not authorized" in denied.stderr) == (1, True)
    for version in ("311", "5"):
        wrong = run("pub", guarded, "-u", "ann", "-P", "no", "-t", "mine/x", "-m", "1", "-V", version)
        assert wrong.returncode == 1
        assert b"connection refused: " in wrong.stderr


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture
def certificates(tmp_path):
    """An authority, and certificates of a server and a client that it signed."""
    ca, ca_key = str(tmp_path / "ca.pem"), str(tmp_path / "ca.key")
    new = ["req", "-newkey", "rsa:2048", "-nodes"]
    openssl(*new, "-x509", "-days", "1", "-subj", "/CN=test authority", "-keyout", ca_key, "-out", ca)
    for name, subject in (("server", "/CN=broker.test"), ("client", "/CN=device-7")):
        request, pem, key = (str(tmp_path / f"{name}.{end}") for end in ("csr", "pem", "key"))
        openssl(*new, "-subj", subject, "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", request)
        openssl(
            *("x509", "-req", "-days", "1", "-copy_extensions", "copy", "-in", request, "-out", pem),
            *("-CA", ca, "-CAkey", ca_key, "-CAcreateserial"),
        )
    return tmp_path


def test_tls_with_client_certificates(tmp_path, certificates):
    config = f"cafile {certificates}/ca.pem\ncertfile {certificates}/server.pem\nkeyfile {certificates}/server.key\n"
    broker = Broker(tmp_path, config + "require_certificate true\n")
    ours = ["--cafile", f"{certificates}/ca.pem", "--cert", f"{certificates}/client.pem"]
    ours += ["--key", f"{certificates}/client.key"]
    try:
        named = ["-h", "localhost", *ours]
        sub = Sub(broker, "secure", "-t", "tls", "-q", "1", "-C", "1", *named)
        pub(broker, "-t", "tls", "-q", "1", "-m", "secret", *named)
        assert sub.lines() == [b"secret"]

        by_address = run("pub", broker, "-t", "tls", "-m", "x", *ours)  # 127.0.0.1 is not in the certificate
        assert (by_address.returncode, b"everlog: 127.0.0.1" in by_address.stderr) == (1, True)
        pub(broker, "-t", "tls", "-m", "x", *ours, "--insecure")

        stranger = run("pub", broker, "-h", "localhost", "-t", "tls", "-m", "x", "--tls-use-os-certs", "--insecure")
        assert (stranger.returncode, b"--cafile" in stranger.stderr) == (1, True)
        plain = run("pub", broker, "-h", "localhost", "-t", "tls", "-m", "x")
        assert plain.returncode == 1
        assert plain.stderr.count(b"\n") == 1
    finally:
        broker.stop()
