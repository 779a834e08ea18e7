"""A broker with few open files: it takes what it may, keeps some for itself, and says why it refuses."""

import contextlib
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.listening import eventually
from tests.raw_client import Closed, RawClient

from everlog.bench.load.brokers import free_port
from everlog.mqtt import Reason

LIMITED = 'ulimit -Sn 100 && ulimit -Hn 256 && exec "$@"'  # the soft limit is for the broker to raise


def page(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return str(answer.read().decode())


def test_clients_beyond_the_files_are_refused_with_a_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    port, http_port, log = free_port(), free_port(), tmp_path / "log"
    serve = [sys.executable, "-m", "everlog", "serve", "--port", str(port), "--http-port", str(http_port)]
    command = ["sh", "-c", LIMITED, "sh", *serve, "--data", str(tmp_path / "data")]
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as broker:
        try:
            assert broker.stdout is not None
            assert any(b"kernels" in line for line in broker.stdout)
            started = log.read_text()
            assert "limits.connections=100000: the system allows 256 open files" in started
            with contextlib.ExitStack() as clients:
                taken: list[RawClient] = []
                while True:
                    client = clients.enter_context(RawClient(port))
                    answer = client.connect(f"c{len(taken)}", clean_start=False)
                    if answer.reason.is_error:
                        break
                    taken.append(client)
                assert answer.reason is Reason.SERVER_BUSY
                assert answer.properties.reason_string == "too many open files for one more connection"
                assert 128 < len(taken) < 192  # three quarters are for clients and the files of the broker
                for _ in range(40):  # most of them are told no more, since even that takes files
                    clients.enter_context(RawClient(port))
                assert page(http_port, "/readyz") == "ok\n"
                assert "everlog_connects_limited_total" in page(http_port, "/metrics")
                assert taken[0].publish("a", b"x", 1) is Reason.SUCCESS
                assert "limit limit=files" in log.read_text()
                client.close()
                taken.pop().close()

                def is_let_in() -> bool:
                    with RawClient(port) as another, contextlib.suppress(Closed, ConnectionError):
                        return not another.connect("again").reason.is_error
                    return False

                eventually(is_let_in, "there is room again")
        finally:
            broker.terminate()
        assert broker.wait(60) == 0
    assert "Traceback" not in log.read_text()
