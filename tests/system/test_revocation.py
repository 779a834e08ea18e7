"""SIGHUP takes rights away from a real broker's clients: rules, users, and authorities of certificates."""

import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.brokers import RunningBroker
from tests.certificates import Authority, Pair, needs_openssl
from tests.listening import eventually, opened
from tests.raw_client import RawClient
from tests.system.serving import Served

from everlog.app.serve import reload_security
from everlog.broker import Listener, delete_user, set_password
from everlog.mqtt import Connack, Connect, Pingreq, Pingresp, Puback, Publish, Reason, decode, encode

OPEN = "everyone readwrite #\n"
CLOSED = "everyone readwrite b/#\nclient pub readwrite a/#\nclient loaded write loaded\n"


@contextmanager
def ruled(tmp_path: Path) -> Iterator[tuple[Served, RawClient]]:
    rules = tmp_path / "acl"
    rules.write_text(OPEN + "everyone deny write loaded\n")
    with (
        Served(tmp_path / "data", security__acl_file=rules) as served,
        RawClient(served.port) as pub,
    ):
        pub.connect("pub")
        yield served, pub


def close_rules(served: Served, tmp_path: Path) -> None:
    """Deny, and return when the broker goes by it."""
    (tmp_path / "acl").write_text(CLOSED)
    served.send(signal.SIGHUP)
    with RawClient(served.port) as client:
        client.connect("loaded")
        eventually(lambda: client.publish("loaded", "?", 1) is Reason.SUCCESS, "the rules are in force")


def test_a_waiting_feed_of_retained_messages_ends(tmp_path: Path) -> None:
    with ruled(tmp_path) as (served, pub), RawClient(served.port) as client:
        for number in range(30):
            pub.publish(f"a/{number}", "secret", 1, retain=True)
        client.connect("c", receive_maximum=1)
        client.subscribe("a/#", qos=1)
        first = client.expect(Publish)
        close_rules(served, tmp_path)
        pub.publish("a/29", "retained afterwards", 1, retain=True)
        client.send(Puback(first.packet_id))
        client.expect_nothing()


def test_messages_under_way_are_not_sent_again(tmp_path: Path) -> None:
    with ruled(tmp_path) as (served, pub):
        with RawClient(served.port) as client:
            client.connect("c", expiry=1000)
            client.subscribe("a/#", "b/#", qos=1)
            for _ in range(300):
                pub.publish("a/1", "secret", 1)
            pub.publish("b/1", "allowed", 1)
            for _ in range(301):
                client.expect(Publish)
        close_rules(served, tmp_path)
        with RawClient(served.port) as client:
            assert client.connect("c", clean_start=False, expiry=1000).session_present
            assert client.message().payload == b"allowed"
            client.expect_nothing()
        assert served.metrics()["withheld_total"] == 300


def test_clients_of_a_deleted_user_go(tmp_path: Path) -> None:
    users = tmp_path / "users"
    for name in ("ann", "bob"):
        set_password(users, name, b"right")
    with Served(tmp_path / "data", security__password_file=users) as served:
        with RawClient(served.port) as ann, RawClient(served.port) as bob:
            ann.connect("a", user_name="ann", password=b"right")
            bob.connect("b", user_name="bob", password=b"right")
            delete_user(users, "ann")
            served.send(signal.SIGHUP)
            ann.expect_closed(Reason.ADMINISTRATIVE_ACTION)
            bob.expect_nothing()
        with RawClient(served.port) as ann:
            assert ann.connect("a", user_name="ann", password=b"right").reason is Reason.BAD_USER_NAME_OR_PASSWORD


class TlsClient:
    """A client over TLS that shows a certificate or none, step by step."""

    def __init__(self, port: int, server_authority: Authority, own: Pair | None) -> None:
        context = ssl.create_default_context(cafile=server_authority.cert)
        if own is not None:
            context.load_cert_chain(own.cert, own.key)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._socket = socket.create_connection(("127.0.0.1", port), 20)

    def close(self) -> None:
        self._socket.close()

    def step(self) -> bool:
        """One step of the handshake; whether it is done on this side."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._socket.sendall(self._outgoing.read())
            return False
        self._socket.sendall(self._outgoing.read())
        return True

    def read(self) -> bool:
        """Take what the broker has sent; whether the connection is still open."""
        try:
            data = self._socket.recv(65536)
        except ConnectionError:
            data = b""
        self._incoming.write(data)
        return bool(data)

    def shake_hands(self) -> "TlsClient":
        while not self.step():
            assert self.read()
        return self

    def ask(self, packet: Connect | Pingreq) -> object:
        """The broker's answer to a packet, or None if it hangs up."""
        self._tls.write(encode(packet, 4))
        self._socket.sendall(self._outgoing.read())
        while True:
            try:
                data = self._tls.read(100)
                return decode(data[0], data[2:], 4, from_client=False) if data else None
            except ssl.SSLWantReadError:
                if not self.read():
                    return None
            except ssl.SSLError:
                return None

    def connect(self, client_id: str) -> "TlsClient":
        assert isinstance(self.ask(Connect(4, client_id)), Connack)
        return self


class Trusting:
    """A broker that trusts two authorities, of which one is taken away."""

    def __init__(self, running: RunningBroker, folder: Path) -> None:
        self.running, self.file = running, folder / "authorities.pem"
        self.both = [Authority(folder / str(number), f"CA {number}") for number in range(2)]
        self.server = self.both[0].issue("server")
        self.trust(*self.both)
        self.listener = Listener(
            "127.0.0.1",
            0,
            "tls",
            cert_file=self.server.cert,
            key_file=self.server.key,
            client_ca_file=str(self.file),
        )

    def trust(self, *authorities: Authority) -> None:
        self.file.write_text("".join(Path(one.cert).read_text() for one in authorities))


@needs_openssl
def test_clients_of_an_authority_that_is_removed_go_and_the_others_stay(tmp_path: Path) -> None:
    with RunningBroker() as running:
        world = Trusting(running, tmp_path)
        with opened(running, world.listener) as listening:
            port = listening.addresses()[0].port
            devices = [authority.issue("device") for authority in world.both]
            clients = [
                TlsClient(port, world.both[0], own).shake_hands().connect(name)
                for name, own in (("first", devices[0]), ("second", devices[1]), ("none", None))
            ]
            on_its_way = TlsClient(port, world.both[0], devices[0])
            on_its_way.step()
            assert on_its_way.read()

            running.call(lambda: reload_security(running.broker, listening))  # the same authorities, read again
            assert all(isinstance(client.ask(Pingreq()), Pingresp) for client in clients)

            world.trust(world.both[1])
            running.call(lambda: reload_security(running.broker, listening))
            assert clients[0].ask(Pingreq()) is None
            assert all(isinstance(client.ask(Pingreq()), Pingresp) for client in clients[1:])
            on_its_way.shake_hands()
            assert on_its_way.ask(Connect(4, "on its way")) is None
            for client in (clients[0], on_its_way):
                client.close()
            here = {"second", "none"}
            eventually(lambda: running.call(lambda: running.inside.connected_ids) == here, "only the others are there")
            for client in clients[1:]:
                client.close()


@needs_openssl
def test_of_an_intermediate_it_is_not_known_who_vouches_for_it(tmp_path: Path) -> None:
    with RunningBroker() as running:
        world = Trusting(running, tmp_path)
        chain = intermediate(world.both[1], tmp_path)
        with opened(running, world.listener) as listening:
            port = listening.addresses()[0].port
            client = TlsClient(port, world.both[0], chain).shake_hands().connect("c")
            running.call(lambda: reload_security(running.broker, listening))
            assert isinstance(client.ask(Pingreq()), Pingresp)
            world.trust(world.both[1])
            running.call(lambda: reload_security(running.broker, listening))
            assert client.ask(Pingreq()) is None
            client.close()
            TlsClient(port, world.both[0], chain).shake_hands().connect("c").close()  # it is let in again


def intermediate(authority: Authority, folder: Path) -> Pair:
    """A client's certificate from an authority below one, with that of the other in its file."""
    middle = Authority(folder / "middle", "Middle")
    request, extensions = folder / "middle.csr", folder / "middle.ext"
    extensions.write_text("basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n")
    subprocess.run(
        ["openssl", "req", "-new", "-key", middle.pair.key, "-subj", "/CN=Middle", "-out", str(request)], check=True
    )
    command = ["openssl", "x509", "-req", "-in", str(request), "-CA", authority.pair.cert, "-CAkey", authority.pair.key]
    subprocess.run(
        [*command, "-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", middle.pair.cert],
        check=True,
        capture_output=True,
    )
    own = middle.issue("device")
    chain = Pair(str(folder / "chain.pem"), own.key)
    with open(chain.cert, "wb") as file:
        for one in (own.cert, middle.pair.cert):
            with open(one, "rb") as part:
                shutil.copyfileobj(part, file)
    return chain
