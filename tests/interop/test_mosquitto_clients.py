"""mosquitto_pub and mosquitto_sub, MQTT 3.1, 3.1.1 and 5."""

import shutil
import subprocess

import pytest
from tests.brokers import RunningBroker

pytestmark = [
    pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="the Mosquitto clients are not installed"),
    pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"]),
]


def command(tool: str, broker: RunningBroker, version: str, *arguments: str) -> list[str]:
    return [tool, "-h", "127.0.0.1", "-p", str(broker.port), "-V", version, *arguments]


def pub(broker: RunningBroker, version: str, *arguments: str, data: bytes | None = None) -> None:
    done = subprocess.run(
        command("mosquitto_pub", broker, version, *arguments), input=data, capture_output=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr


class Sub:
    """A mosquitto_sub that is subscribed when the block begins."""

    def __init__(self, broker: RunningBroker, version: str, *arguments: str) -> None:
        self._command = command("mosquitto_sub", broker, version, *arguments)
        self._before = broker.broker.metrics.subscribes
        self._broker = broker

    def __enter__(self) -> "Sub":
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while self._broker.call(lambda: self._broker.broker.metrics.subscribes) == self._before:
            if self.process.poll():  # one that has got all it wanted ends with 0, and has subscribed
                raise AssertionError(self.process.communicate()[1])
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def lines(self) -> list[str]:
        out, error = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, error
        return out.decode().splitlines()


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_messages(broker: RunningBroker, version, qos):
    with Sub(broker, version, "-t", "t/#", "-q", qos, "-C", "200", "-F", "%t %q %r %p") as sub:
        lines = "".join(f"{number}\n" for number in range(200))
        pub(broker, version, "-t", "t/a", "-q", qos, "-l", data=lines.encode())
        assert sub.lines() == [f"t/a {qos} 0 {number}" for number in range(200)]


def test_a_large_retained_message(broker: RunningBroker, version):
    payload = b"x" * 1_000_000
    pub(broker, version, "-t", "big", "-q", "1", "-r", "-s", data=payload)
    with Sub(broker, version, "-t", "big", "-q", "1", "-C", "1", "-F", "%r %l") as sub:
        assert sub.lines() == ["1 1000000"]


def test_a_will(broker: RunningBroker, version):
    with Sub(broker, version, "-t", "will", "-q", "1", "-C", "1", "-F", "%t %p") as watcher:
        will = ("--will-topic", "will", "--will-payload", "gone", "--will-qos", "1")
        with Sub(broker, version, "-t", "x", "-i", "lost", *will):
            pass
        assert watcher.lines() == ["will gone"]


def test_a_session_is_resumed(broker: RunningBroker, version):
    session = ("-i", "s", "-c", "-q", "1", "-t", "t")
    if version == "mqttv5":
        session += ("-x", "100")
    with Sub(broker, version, *session):
        pass
    for number in range(5):
        pub(broker, version, "-t", "t", "-q", "1", "-m", str(number))
    done = subprocess.run(
        command("mosquitto_sub", broker, version, *session, "-C", "5"), capture_output=True, timeout=20, check=True
    )
    assert done.stdout.decode().split() == ["0", "1", "2", "3", "4"]
