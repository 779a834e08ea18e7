"""Warnings at start: what is allowed and rarely meant is said, what is usual is not."""

from everlog.app.settings import Http, Listener, Security, Settings
from everlog.app.start_warnings import warnings_of

WIDE = Listener(host="0.0.0.0")
USERS = Security(password_file="users")


def test_the_defaults_need_no_warning() -> None:
    assert warnings_of(Settings()) == []
    assert warnings_of(Settings(security=USERS)) == []
    assert warnings_of(Settings(http=Http(host="0.0.0.0", port=None))) == []


def test_an_http_port_that_other_machines_reach_is_told() -> None:
    (line,) = warnings_of(Settings(http=Http(host="0.0.0.0")))
    assert line.startswith("http.host=0.0.0.0: everybody ")
    assert "client ids" not in line
    (line,) = warnings_of(Settings(http=Http(host="::", client_ids=True)))
    assert "client ids too" in line


def test_passwords_over_plain_tcp_beyond_loopback_are_told() -> None:
    (line,) = warnings_of(Settings(listener=WIDE, security=USERS))
    assert line.startswith("listener.port=1883: passwords cross the network unencrypted")
    both = Listener(host="0.0.0.0", websocket_port=8080)
    assert len(warnings_of(Settings(listener=both, security=USERS))) == 2
    assert warnings_of(Settings(listener=Listener(host="0.0.0.0", port=None, tls_port=8883), security=USERS)) == []
    assert warnings_of(Settings(listener=WIDE, security=Security(allow_anonymous=True))) == []


def test_kernels_that_are_not_compiled_are_told() -> None:
    (line,) = warnings_of(Settings(), "interpreted")
    assert line.startswith("kernels are interpreted: all works, many times slower")
