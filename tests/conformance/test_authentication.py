"""Enhanced authentication (sections 3.15 and 4.12) with SCRAM-SHA-256 and with methods of a test's own."""

import base64
import hashlib
import hmac

import pytest
from tests.conformance.clause import clauses

from everlog.broker import Accept, Applicant, Continue, Limits, Refuse, Security, set_password
from everlog.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Properties,
    Publish,
    Reason,
    Subscribe,
    Subscription,
)

SCRAM = "SCRAM-SHA-256"
MORE = Reason.CONTINUE_AUTHENTICATION
AGAIN = Reason.RE_AUTHENTICATE


@pytest.fixture(scope="module")
def passwords(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "passwords"
    set_password(path, "ann", b"right", scram=True)
    set_password(path, "bob", b"right", scram=True)
    set_password(path, "old", b"right")
    return str(path)


@pytest.fixture
def guarded(stages, passwords):
    return stages(security=Security(allow_anonymous=False, password_file=passwords))


class Echo:
    """A method in so many steps as its data says, each answered with the data; `no` is refused, `bad` breaks it."""

    def __init__(self, credentials):
        self.seen = []

    def begin(self, method, data, applicant):
        self.applicant = applicant
        return self.step(data)

    def step(self, data):
        if data == b"no":
            return Refuse(Reason.BANNED, "go away")
        if data == b"bad":
            raise ValueError("a fault of the method")
        if data in (None, b"done"):
            return Accept("eve", None if data is None else self.applicant.client_id.encode())
        return Continue(data)


@pytest.fixture
def echoing(stages):
    return stages(security=Security(allow_anonymous=False, methods={"ECHO": Echo}))


def auth(data, reason=MORE, method="ECHO"):
    return Auth(reason, Properties(authentication_method=method, authentication_data=data))


def hello(data, method="ECHO", client_id="c", **properties):
    return Connect(
        5, client_id, properties=Properties(authentication_method=method, authentication_data=data, **properties)
    )


def final(password, bare, server_first):
    """The client's last message of SCRAM, and the answer that proves the server."""
    nonce, salt, count = (part[2:] for part in server_first.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password, base64.b64decode(salt), int(count))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = f"c=biws,r={nonce}"
    message = f"{bare},{server_first.decode()},{without_proof}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    answer = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
    return f"{without_proof},p={proof}".encode(), b"v=" + base64.b64encode(answer)


def prove(client, user, password, first):
    """SCRAM to its last message: the packet that answers it, and the data that it should have."""
    bare = f"n={user},r=fyko"
    client.send(first(f"n,,{bare}".encode()))
    challenge = client.expect(Auth)
    assert challenge.reason is MORE
    assert challenge.properties.authentication_method == SCRAM
    message, answer = final(password, bare, challenge.properties.authentication_data)
    client.send(auth(message, method=SCRAM))
    return client.receive(), answer


@clauses("MQTT-4.12.0-2 MQTT-4.12.0-3 MQTT-4.12.0-5 MQTT-3.15.2-1")
def test_a_client_proves_its_password_without_sending_it(guarded):
    client = guarded.client()
    connack, answer = prove(client, "ann", b"right", lambda data: hello(data, SCRAM))
    assert isinstance(connack, Connack)
    assert connack.reason is Reason.SUCCESS
    assert connack.properties.authentication_method == SCRAM
    assert connack.properties.authentication_data == answer
    client.expect_nothing()
    assert [one.user for one in guarded.inside.connections] == ["ann"]


@clauses("MQTT-4.12.0-4")
@pytest.mark.parametrize("user", ["ann", "nobody", "old"])
def test_a_wrong_proof_is_refused_whoever_it_is_said_to_be(guarded, user):
    client = guarded.client()
    connack, _ = prove(client, user, b"wrong", lambda data: hello(data, SCRAM))
    assert connack.reason is Reason.NOT_AUTHORIZED
    assert connack.properties.reason_string == "user name or password is wrong"
    client.expect_closed()
    assert guarded.broker.metrics.auth_failures == 1


def test_without_an_entry_for_it_scram_is_not_known(stages, tmp_path):
    set_password(tmp_path / "passwords", "old", b"right")
    stage = stages(security=Security(allow_anonymous=False, password_file=str(tmp_path / "passwords")))
    client = stage.client()
    client.send(hello(b"n,,n=old,r=x", SCRAM))
    assert client.expect(Connack).reason is Reason.BAD_AUTHENTICATION_METHOD
    client.expect_closed()


@clauses("MQTT-4.12.1-1")
def test_a_client_that_is_in_authenticates_again(guarded):
    client = guarded.client()
    prove(client, "ann", b"right", lambda data: hello(data, SCRAM))
    for _ in range(2):
        answered, answer = prove(client, "ann", b"right", lambda data: auth(data, AGAIN, SCRAM))
        assert answered == Auth(Reason.SUCCESS, Properties(authentication_method=SCRAM, authentication_data=answer))
    client.expect_nothing()


@clauses("MQTT-4.12.1-2")
@pytest.mark.parametrize(("user", "password"), [("ann", b"wrong"), ("bob", b"right")])
def test_a_failed_or_another_authentication_closes(guarded, user, password):
    client = guarded.client()
    prove(client, "ann", b"right", lambda data: hello(data, SCRAM))
    end, _ = prove(client, user, password, lambda data: auth(data, AGAIN, SCRAM))
    assert isinstance(end, Disconnect)
    assert end.reason is Reason.NOT_AUTHORIZED
    client.expect_closed()


def test_messages_flow_while_a_client_authenticates_again(echoing):
    client = echoing.client()
    client.send(hello(None))
    assert client.expect(Connack).reason is Reason.SUCCESS
    client.send(Subscribe(1, (Subscription("a"),)), auth(b"1", AGAIN), Publish("a", b"x"))
    client.receive()
    assert client.expect(Auth) == auth(b"1")
    assert client.message().payload == b"x"
    client.send(auth(b"2"), Pingreq(), auth(b"done"))
    assert client.expect(Auth) == auth(b"2")
    client.receive()
    assert client.expect(Auth) == auth(b"c", Reason.SUCCESS)
    assert client.publish("a", b"y", 1) is Reason.SUCCESS


@pytest.mark.parametrize("at_once", [True, False])
def test_a_method_may_take_no_step_or_many(echoing, at_once):
    client = echoing.client()
    steps = [] if at_once else [b"1", b"22", b""]
    client.send(hello(steps[0] if steps else b"done"))
    for data in steps[1:]:
        assert client.expect(Auth).reason is MORE
        client.send(auth(data))
    if steps:
        client.expect(Auth)
        client.send(auth(b"done"))
    connack = client.expect(Connack)
    assert connack.reason is Reason.SUCCESS
    assert (connack.properties.authentication_method, connack.properties.authentication_data) == ("ECHO", b"c")


def test_a_method_sees_who_asks(stages):
    seen = []

    class Curious(Echo):
        def begin(self, method, data, applicant):
            seen.append((method, data, applicant))
            return Accept("eve")

    stage = stages(security=Security(allow_anonymous=False, methods={"CURIOUS": Curious}))
    client = stage.client()
    more = Properties(authentication_method="CURIOUS")
    client.send(Connect(5, "c", user_name="u", password=b"p", properties=more))
    assert client.expect(Connack).reason is Reason.SUCCESS
    host, port = client.socket.getsockname()
    assert seen == [("CURIOUS", None, Applicant("c", f"{host}:{port}", "u", b"p"))]


@clauses("MQTT-4.12.0-4")
@pytest.mark.parametrize(("data", "reason"), [(b"no", Reason.BANNED), (b"bad", Reason.IMPLEMENTATION_SPECIFIC_ERROR)])
def test_a_refusal_before_the_connack_carries_its_reason(echoing, data, reason):
    client = echoing.client()
    client.send(hello(b"1"))
    client.expect(Auth)
    client.send(auth(data))
    assert client.expect(Connack).reason is reason
    client.expect_closed()
    assert echoing.connected("other", authentication_method="ECHO")


@clauses("MQTT-4.12.1-2")
@pytest.mark.parametrize("data", [b"no", b"bad"])
def test_a_refusal_on_an_open_connection_closes_it(echoing, data):
    client = echoing.client()
    client.send(hello(None))
    client.expect(Connack)
    client.send(auth(data, AGAIN))
    client.expect_closed(Reason.NOT_AUTHORIZED)


@clauses("MQTT-4.12.0-5 MQTT-4.12.1-1")
@pytest.mark.parametrize("is_open", [False, True])
def test_an_auth_of_another_method_closes(echoing, is_open):
    client = echoing.client()
    client.send(hello(None if is_open else b"1"))
    client.receive()
    client.send(auth(b"2", AGAIN if is_open else MORE, "OTHER"))
    if is_open:
        client.expect_closed(Reason.PROTOCOL_ERROR)
    else:
        assert client.expect(Connack).reason is Reason.PROTOCOL_ERROR
        client.expect_closed()


@clauses("MQTT-3.1.2-30")
@pytest.mark.parametrize("packet", [Publish("a", b"x"), Pingreq(), Subscribe(1, (Subscription("a"),))])
def test_nothing_but_auth_and_disconnect_comes_before_the_connack(echoing, packet):
    watcher = echoing.connected("w", authentication_method="ECHO")
    watcher.subscribe("a")
    for together in (True, False):
        client = echoing.client()
        if together:
            client.send(hello(b"1"), packet)
            client.expect(Auth)
        else:
            client.send(hello(b"1"))
            client.expect(Auth)
            client.send(packet)
        assert client.expect(Connack).reason is Reason.PROTOCOL_ERROR
        client.expect_closed()
    watcher.expect_nothing()


@clauses("MQTT-3.1.2-30")
def test_a_disconnect_before_the_connack_ends_it(echoing):
    client = echoing.client()
    client.send(hello(b"1"))
    client.expect(Auth)
    client.send(Disconnect())
    client.expect_closed()
    echoing.until(lambda: not echoing.inside.pending)


@pytest.mark.parametrize(
    ("packets", "reason"),
    [
        ([auth(b"1")], Reason.PROTOCOL_ERROR),  # it continues nothing
        ([auth(b"1", AGAIN), auth(b"2", AGAIN)], Reason.PROTOCOL_ERROR),  # one within another
    ],
)
def test_an_auth_out_of_place_closes(echoing, packets, reason):
    client = echoing.client()
    client.send(hello(None))
    client.expect(Connack)
    client.send(*packets)
    for _ in packets[1:]:
        client.expect(Auth)
    client.expect_closed(reason)


def test_an_authentication_again_before_the_connack_is_refused(echoing):
    client = echoing.client()
    client.send(hello(b"1"))
    client.expect(Auth)
    client.send(auth(b"2", AGAIN))
    assert client.expect(Connack).reason is Reason.PROTOCOL_ERROR
    client.expect_closed()


@clauses("MQTT-3.15.2-1")
@pytest.mark.parametrize("code", [0x00, 0x01, 0x80, 0xFF])
def test_an_auth_with_a_reason_that_clients_do_not_send_closes(echoing, code):
    client = echoing.client()
    client.send(hello(None))
    client.expect(Connack)
    client.send_bytes(b"\xf0\x09" + bytes((code,)) + b"\x07\x15\x00\x04ECHO")
    client.expect_closed(Reason.PROTOCOL_ERROR)


@clauses("MQTT-3.15.1-1")
def test_flags_of_an_auth_close(echoing):
    client = echoing.client()
    client.send(hello(None))
    client.expect(Connack)
    client.send_bytes(b"\xf1\x09\x18\x07\x15\x00\x04ECHO")
    client.expect_closed(Reason.MALFORMED_PACKET)


@clauses("MQTT-3.15.2-2 MQTT-3.15.2-3")
def test_an_auth_has_neither_reason_string_nor_user_properties(echoing):
    client = echoing.client()
    client.send(hello(b"1", user_properties=(("k", "v"),)))
    assert client.expect(Auth) == auth(b"1")


def test_an_exchange_that_does_not_end_is_cut_off_in_time(stages):
    stage = stages(security=Security(methods={"ECHO": Echo}), limits=Limits(connect_timeout_s=30))
    client = stage.client()
    client.send(hello(b"1"))
    client.expect(Auth)
    now = stage.call(stage.broker.time)
    stage.inside.set_clock(lambda: now)
    stage.call(lambda: stage.inside.sweep_pending(29))
    client.send(auth(b"2"))
    client.expect(Auth)
    stage.call(lambda: stage.inside.sweep_pending(31))
    assert client.expect(Connack).reason is Reason.SERVER_UNAVAILABLE
    client.expect_closed()
    assert stage.broker.metrics.connect_timeouts == 1


def test_entries_read_anew_hold_for_the_next_authentication(stages, tmp_path):
    path = tmp_path / "passwords"
    set_password(path, "ann", b"right", scram=True)
    stage = stages(security=Security(allow_anonymous=False, password_file=str(path)))
    client = stage.client()
    prove(client, "ann", b"right", lambda data: hello(data, SCRAM))
    set_password(path, "ann", b"new")
    stage.call(stage.inside.reload)
    answered, _ = prove(client, "ann", b"new", lambda data: auth(data, AGAIN, SCRAM))
    assert answered.reason is Reason.SUCCESS
    end, _ = prove(client, "ann", b"right", lambda data: auth(data, AGAIN, SCRAM))
    assert end.reason is Reason.NOT_AUTHORIZED
