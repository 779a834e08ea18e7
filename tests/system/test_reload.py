"""SIGHUP: users, rules and certificates are read anew together, or, with one bad file among them, not at all."""

import logging
import shutil
import socket
import ssl
from pathlib import Path

import pytest
from tests.brokers import RunningBroker
from tests.certificates import Authority, Pair, needs_openssl
from tests.listening import opened

from everlog.app.serve import reload_security
from everlog.broker import Listener, Security, set_password

pytestmark = needs_openssl


class Files:
    """What a broker reads on SIGHUP, in a first and a second state, and what it has in force."""

    def __init__(self, folder: Path) -> None:
        self.users, self.rules = folder / "users", folder / "acl"
        self.server = Pair(str(folder / "server.pem"), str(folder / "server.key"))
        self.authorities = [Authority(folder / str(number), f"CA {number}") for number in range(2)]
        self.pairs = [authority.issue("server") for authority in self.authorities]
        self.write(0)

    def write(self, state: int) -> None:
        self.users.unlink(missing_ok=True)
        set_password(self.users, f"user-{state}", b"secret")
        self.rules.write_text(f"everyone readwrite topic-{state}\n")
        shutil.copy(self.pairs[state].cert, self.server.cert)
        shutil.copy(self.pairs[state].key, self.server.key)

    def in_force(self, security: Security, port: int) -> list[tuple[bool, bool, bool]]:
        """Of each state: whether its user, its topic and its certificate are."""
        return [
            (
                security.verify(f"user-{state}", b"secret").admitted,
                security.acl.may_publish(None, "c", f"topic-{state}"),
                _is_trusted(port, self.authorities[state]),
            )
            for state in range(2)
        ]


def _is_trusted(port: int, authority: Authority) -> bool:
    context = ssl.create_default_context(cafile=authority.cert)
    try:
        with socket.create_connection(("127.0.0.1", port), 20) as plain:
            context.wrap_socket(plain, server_hostname="localhost").close()
    except ssl.SSLCertVerificationError:
        return False
    return True


@pytest.mark.parametrize("bad", ["users", "acl", "server.pem"])
def test_one_bad_file_leaves_all_that_was_in_force(tmp_path: Path, bad: str, caplog: pytest.LogCaptureFixture) -> None:
    files = Files(tmp_path)
    security = Security(password_file=str(files.users), acl_file=str(files.rules))
    tls = Listener("127.0.0.1", 0, "tls", cert_file=files.server.cert, key_file=files.server.key)
    with (
        caplog.at_level(logging.INFO, "everlog"),
        RunningBroker(security=security) as running,
        opened(running, tls) as listening,
    ):
        port = listening.addresses()[0].port
        files.write(1)
        (tmp_path / bad).write_text("nonsense")
        running.call(lambda: reload_security(running.broker, listening))
        assert files.in_force(security, port) == [(True,) * 3, (False,) * 3]
        (line,) = [one.getMessage() for one in caplog.records if "reloaded" in one.getMessage()]
        assert "the old users, rules and certificates stay" in line
        assert str(tmp_path / bad) in line

        files.write(1)
        running.call(lambda: reload_security(running.broker, listening))
        assert files.in_force(security, port) == [(False,) * 3, (True,) * 3]
