"""TLS listeners: versions, client certificates, identities, new certificates without a restart, and bad files."""

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from tests.brokers import RunningBroker, ServedBroker
from tests.certificates import Authority, Pair, needs_openssl
from tests.listening import eventually, on_loop, opened

from everlog.base import Unavailable, UsageError
from everlog.broker import Limits, Listener, listen
from everlog.broker.transport.revocation_list import revoked_serials
from everlog.mqtt import Connect, encode

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    with RunningBroker() as broker:
        yield broker


def secured(server: Pair, client_ca: str | None = None, required: bool = False, port: int = 0) -> Listener:
    return Listener(
        "127.0.0.1",
        port,
        "tls",
        cert_file=server.cert,
        key_file=server.key,
        client_ca_file=client_ca,
        require_client_cert=required,
    )


def trusting(authority: Authority, own: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.cert)
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return context


def connected(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 20), server_hostname="localhost")


def test_a_client_of_others_publishes_and_subscribes_over_tls(
    running: RunningBroker, authority: Authority, server: Pair
) -> None:
    got: list[bytes] = []
    with opened(running, secured(server)) as listening:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "c")
        client.tls_set_context(trusting(authority))
        client.on_connect = lambda c, *_: c.subscribe("t", 1)
        client.on_subscribe = lambda c, *_: c.publish("t", b"secret", 1)
        client.on_message = lambda _c, _u, message: got.append(message.payload)
        client.connect("localhost", listening.addresses()[0].port)
        client.loop_start()
        eventually(lambda: got == [b"secret"], "the message came back")
        client.disconnect()
        client.loop_stop()


def test_old_versions_of_tls_are_refused(running: RunningBroker, authority: Authority, server: Pair) -> None:
    with opened(running, secured(server)) as listening:
        port = listening.addresses()[0].port
        old = trusting(authority)
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            old.minimum_version = ssl.TLSVersion.TLSv1_1
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connected(port, old)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            new = trusting(authority)
            new.minimum_version = new.maximum_version = version
            connected(port, new).close()


def test_a_client_certificate_names_the_user(running: RunningBroker, authority: Authority, server: Pair) -> None:
    with opened(running, secured(server, authority.cert, required=True)) as listening:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "c", protocol=paho.MQTTv5)
        client.tls_set_context(trusting(authority, authority.issue("meter-7")))
        client.connect("localhost", listening.addresses()[0].port)
        client.loop_start()
        (session,) = eventually(lambda: running.inside.connected_sessions, "the client is connected")
        assert session.user == "meter-7"
        client.disconnect()
        client.loop_stop()


def test_an_optional_certificate_may_be_left_out_and_then_names_nobody(
    running: RunningBroker, authority: Authority, server: Pair
) -> None:
    with opened(running, secured(server, authority.cert)) as listening:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "c")
        client.tls_set_context(trusting(authority))
        client.connect("localhost", listening.addresses()[0].port)
        client.loop_start()
        (session,) = eventually(lambda: running.inside.connected_sessions, "the client is connected")
        assert session.user is None
        client.disconnect()
        client.loop_stop()


def test_a_required_certificate_must_be_shown_and_signed_by_the_right_authority(
    running: RunningBroker, authority: Authority, server: Pair, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "other", "Other CA").issue("meter-7")
    with opened(running, secured(server, authority.cert, required=True)) as listening:
        for own in (None, stranger):
            assert not admitted(listening.addresses()[0].port, trusting(authority, own))
    assert not running.broker.metrics.connects


def admitted(port: int, context: ssl.SSLContext) -> bool:
    """Whether a client gets a CONNACK; with TLS 1.3 it learns of a refusal only when it reads."""
    try:
        with connected(port, context) as peer:
            peer.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c")
            return peer.recv(4) == b"\x20\x02\x00\x00"
    except (ssl.SSLError, ConnectionError):
        return False


def test_new_certificates_are_taken_without_a_restart(
    running: RunningBroker, authority: Authority, server: Pair, tmp_path: Path
) -> None:
    mine = Pair(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    install(server, mine)
    other = Authority(tmp_path / "other", "Other CA")
    clients = tmp_path / "clients.pem"
    shutil.copy(authority.cert, clients)
    with opened(running, secured(mine, str(clients), required=True)) as listening:
        port = listening.addresses()[0].port
        old, new = authority.issue("old"), other.issue("new")
        assert admitted(port, trusting(authority, old))

        Path(mine.cert).write_text("nonsense")
        with pytest.raises(UsageError, match=r"not a certificate chain"):
            running.call(lambda: listening.prepare_certificates()())
        assert admitted(port, trusting(authority, old))

        install(other.issue("server"), mine)
        shutil.copy(other.cert, clients)
        running.call(lambda: listening.prepare_certificates()())
        assert admitted(port, trusting(other, new))
        assert not admitted(port, trusting(other, old))  # its authority is no longer trusted
        assert not admitted(port, trusting(authority, old))  # and the old certificate no longer shown


def test_a_minimum_version_is_kept_to(running: RunningBroker, authority: Authority, server: Pair) -> None:
    with opened(running, replace(secured(server), min_version="1.3")) as listening:
        older = trusting(authority)
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connected(listening.addresses()[0].port, older)
        connected(listening.addresses()[0].port, trusting(authority)).close()


def test_revoked_certificates_are_refused_and_at_a_reload_disconnected(running: RunningBroker, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    lost, stolen, good = (authority.issue(name) for name in ("lost", "stolen", "good"))
    crl = tmp_path / "crl.pem"
    shutil.copy(authority.revoke(lost), crl)
    listener = replace(secured(authority.issue("server"), authority.cert, required=True), crl_file=str(crl))
    with opened(running, listener) as listening:
        port = listening.addresses()[0].port
        assert not admitted(port, trusting(authority, lost))
        peers = {}
        for name, pair in (("stolen", stolen), ("good", good)):
            peers[name] = connected(port, trusting(authority, pair))
            peers[name].sendall(encode(Connect(4, name), 4))
            assert peers[name].recv(4) == b"\x20\x02\x00\x00"
        shutil.copy(authority.revoke(lost, stolen), crl)
        running.call(lambda: listening.prepare_certificates()())
        running.call(running.broker.connections.rules_changed)
        assert peers["stolen"].recv(1) == b""
        assert not admitted(port, trusting(authority, stolen))
        peers["good"].sendall(b"\xc0\x00")
        assert peers["good"].recv(2) == b"\xd0\x00"
        crl.write_text("nonsense")
        with pytest.raises(UsageError, match="has no revocation list"):
            running.call(listening.prepare_certificates)
        for peer in peers.values():
            peer.close()


def test_an_empty_revocation_list_revokes_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    assert revoked_serials(Path(authority.revoke()).read_bytes()) == frozenset()
    with pytest.raises(ValueError, match="revocation list"):
        revoked_serials(b"-----BEGIN X509 CRL-----MIIB-----END X509 CRL-----")


@pytest.mark.parametrize("loop", [RunningBroker, ServedBroker])
@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_tcp_notices_peers_that_are_gone(
    authority: Authority, server: Pair, loop: type[RunningBroker], kind: str
) -> None:
    listener = replace(secured(server), kind=kind, tcp_keepalive_s=40)
    with loop() as broker, opened(broker, listener) as listening:
        port = listening.addresses()[0].port
        peer = connected(port, trusting(authority)) if kind == "tls" else socket.create_connection(("127.0.0.1", port))
        peer.sendall(encode(Connect(4, "c"), 4))
        assert peer.recv(1) == b"\x20"
        accepted = broker.inside.transport("c").get_extra_info("socket")
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [accepted.getsockopt(socket.IPPROTO_TCP, one) for one in options] == [40, 10, 4]
        peer.close()


def install(source: Pair, target: Pair) -> None:
    shutil.copy(source.cert, target.cert)
    shutil.copy(source.key, target.key)


def test_a_tls_handshake_that_never_ends_is_cut_off(server: Pair) -> None:
    with (
        RunningBroker(limits=Limits(connect_timeout_s=0.05)) as broker,
        opened(broker, secured(server)) as listening,
        socket.create_connection(("127.0.0.1", listening.addresses()[0].port), 20) as peer,
    ):
        assert peer.recv(1) == b""


@pytest.mark.parametrize("loop", [RunningBroker, ServedBroker])
def test_a_peer_that_does_not_end_tls_is_cut_off_when_the_broker_stops(
    authority: Authority, server: Pair, loop: type[RunningBroker]
) -> None:
    with loop() as broker, opened(broker, secured(server)) as listening:
        peer = connected(listening.addresses()[0].port, trusting(authority))
        peer.sendall(encode(Connect(5, "c"), 5))
        assert peer.recv(1) == b"\x20"
    assert not broker.inside.connections  # it has not merely been given up
    peer.close()


@pytest.mark.parametrize("kind", ["tls", "wss"])
def test_tls_without_a_certificate_is_refused(running: RunningBroker, kind: str) -> None:
    with pytest.raises(UsageError, match="needs a certificate"):
        on_loop(running, listen(running.broker.connections, [Listener("127.0.0.1", 0, kind)]))  # type: ignore[arg-type]


def test_bad_files_are_named(running: RunningBroker, authority: Authority, server: Pair, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    encrypted = tmp_path / "encrypted.key"
    command = ["openssl", "pkey", "-in", server.key, "-aes256", "-passout", "pass:x", "-out", str(encrypted)]
    subprocess.run(command, check=True, capture_output=True)
    for listener, message in (
        (secured(Pair("/nowhere/c.pem", server.key)), "/nowhere/c.pem can't be read: No such file"),
        (secured(Pair(server.cert, str(nonsense))), "nonsense.pem are not a certificate chain and its key"),
        (secured(Pair(server.cert, authority.pair.key)), "is not the key of"),
        (secured(Pair(server.cert, str(encrypted))), "is encrypted"),
        (secured(server, str(nonsense)), "nonsense.pem has no CA certificate"),
        (secured(server, None, required=True), "no CA is given to check them"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            on_loop(running, listen(running.broker.connections, [listener]))
        assert caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_key_is_named(running: RunningBroker, server: Pair, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    shutil.copy(server.key, key)
    key.chmod(0)
    with pytest.raises(UsageError, match=r"key\.pem can't be read: Permission denied"):
        on_loop(running, listen(running.broker.connections, [secured(Pair(server.cert, str(key)))]))


def test_a_port_in_use_is_named_and_nothing_stays_open(running: RunningBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        free = socket.create_server(("127.0.0.1", 0))
        first = free.getsockname()[1]
        free.close()
        with pytest.raises(Unavailable, match=f"port {port} on 127.0.0.1 is in use") as caught:
            on_loop(
                running, listen(running.broker.connections, [Listener("127.0.0.1", first), Listener("127.0.0.1", port)])
            )
        assert f"sport = :{port}" in caught.value.hint
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", first), 20)


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_named(running: RunningBroker, host: str) -> None:
    with pytest.raises(UsageError, match=f"{host} is not an address of this machine"):
        on_loop(running, listen(running.broker.connections, [Listener(host, 0)]))


def test_addresses_say_how_to_connect(running: RunningBroker, server: Pair) -> None:
    listeners = [Listener("127.0.0.1", 0), Listener("::1", 0, "ws"), secured(server)]
    with opened(running, *listeners) as listening:
        plain, web, tls = listening.addresses()
        assert str(plain) == f"mqtt://127.0.0.1:{plain.port}"
        assert str(web) == f"ws://[::1]:{web.port}/mqtt"
        assert str(tls) == f"mqtts://127.0.0.1:{tls.port}"
