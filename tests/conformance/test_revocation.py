"""What a reload takes away is not sent any more, by whichever way it waited, and who may not be there goes."""

import base64
import hashlib
import hmac

import pytest

from everlog.broker import Security, delete_user, set_password
from everlog.mqtt import Auth, Connack, Connect, Properties, Puback, Publish, Reason, Will

OPEN = "everyone readwrite a/#\neveryone readwrite b/#\n"
CLOSED = "client pub readwrite a/#\nclient other readwrite a/#\neveryone readwrite b/#\n"


class Ruled:
    """A broker whose rules change."""

    def __init__(self, stages, tmp_path, **settings):
        self.path = tmp_path / "acl"
        self.path.write_text(OPEN)
        self.stage = stages(security=Security(acl_file=str(self.path)), **settings)
        self.pub = self.stage.connected("pub")

    def reload(self, rules=CLOSED):
        self.path.write_text(rules)
        self.stage.call(self.stage.inside.reload)

    @property
    def withheld(self):
        return self.stage.broker.metrics.withheld


@pytest.fixture
def ruled(stages, tmp_path):
    return Ruled(stages, tmp_path)


def test_a_waiting_feed_of_retained_messages_ends(ruled):
    for number in range(30):
        ruled.pub.publish(f"a/{number}", "old", 1, retain=True)
    client = ruled.stage.connected("c", receive_maximum=1)
    client.subscribe("a/#", qos=1)
    first = client.expect(Publish)
    ruled.reload()
    ruled.pub.publish("a/29", "retained afterwards", 1, retain=True)
    ruled.pub.publish("b/1", "allowed", 1)
    client.send(Puback(first.packet_id))
    client.expect_nothing()
    client.subscribe("b/#", qos=1)
    ruled.pub.publish("b/1", "more", 1)
    assert client.message().payload == b"more"


def test_a_feed_goes_on_for_filters_that_stay(ruled):
    for topic in ("a/1", "b/1", "b/2"):
        ruled.pub.publish(topic, topic, 1, retain=True)
    client = ruled.stage.connected("c", receive_maximum=1)
    client.subscribe("a/#", "b/#", qos=1)
    first = client.expect(Publish)
    ruled.reload()
    client.send(Puback(first.packet_id))
    assert client.payloads(2) == ["b/1", "b/2"]
    client.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("retain", [False, True], ids=["log", "copy"])
def test_what_was_under_way_is_not_sent_again_and_its_packet_ids_are_free(ruled, qos, retain):
    client = ruled.stage.connected("c", expiry=1000, receive_maximum=40)
    if not retain:
        client.subscribe("a/#", "b/#", qos=qos)
    for number in range(20):
        ruled.pub.publish(f"a/{number}", "secret", qos, retain=retain)
        ruled.pub.publish(f"b/{number}", f"{number}", qos, retain=retain)
    if retain:
        client.subscribe("a/#", "b/#", qos=qos)
    assert len([client.expect(Publish) for _ in range(40)]) == 40
    client.close()
    ruled.stage.offline("c")
    ruled.reload()
    again = ruled.stage.connected("c", clean_start=False, expiry=1000, receive_maximum=40)
    came = []
    while len(came) < 20:
        packet = again.receive()
        if isinstance(packet, Publish):
            assert packet.topic.startswith("b/")
            came.append(packet)
    assert [one.payload.decode() for one in came] == [str(number) for number in range(20)]
    assert ruled.withheld == 20
    for number in range(20):
        ruled.pub.publish("b/new", f"{number}", 1)
    if qos == 1:
        assert again.payloads(20) == [str(number) for number in range(20)]
        again.expect_nothing()


def test_what_was_missed_is_not_read_from_the_log(ruled):
    client = ruled.stage.connected("c", expiry=1000)
    client.subscribe("a/#", "b/#", qos=1)
    client.close()
    ruled.stage.offline("c")
    for number in range(20):
        ruled.pub.publish("a/1", "secret", 1)
        ruled.pub.publish("b/1", f"{number}", 1)
    ruled.reload()
    again = ruled.stage.connected("c", clean_start=False, expiry=1000)
    assert again.payloads(20) == [str(number) for number in range(20)]
    again.expect_nothing()


def test_a_replay_ends_where_it_is(ruled):
    ruled.stage.connected("keeper", expiry=1000).subscribe("a/#", "b/#", qos=1)
    for number in range(20):
        ruled.pub.publish("a/1", f"{number}", 1)
    client = ruled.stage.connected("c", receive_maximum=1)
    client.subscribe("$replay/earliest/a/#", qos=1)
    first = client.expect(Publish)
    ruled.reload()
    client.send(Puback(first.packet_id))
    client.expect_nothing()


def test_what_waits_in_memory_is_not_sent(ruled):
    client = ruled.stage.connected("c", receive_maximum=1)
    client.subscribe("a/#", "b/#", qos=1)
    ruled.pub.publish("b/first", "x", 1)
    first = client.expect(Publish)
    for number in range(10):
        ruled.pub.send(
            Publish("a/1", b"secret", 1, packet_id=100 + number),
            Publish("b/1", b"%d" % number, 1, packet_id=200 + number),
        )
    assert {ruled.pub.answer(Puback).reason for _ in range(20)} == {Reason.SUCCESS}
    ruled.reload()
    assert ruled.withheld == 10
    client.send(Puback(first.packet_id))
    assert client.payloads(10) == [str(number) for number in range(10)]
    client.expect_nothing()
    assert ruled.stage.call(lambda: ruled.stage.inside.sessions["c"].queued_bytes) == 0


def test_what_waits_for_a_member_that_loses_its_right_goes_to_another(ruled):
    client = ruled.stage.connected("c", receive_maximum=1)
    client.subscribe("$share/g/a/#", qos=1)
    for number in range(5):
        ruled.pub.publish("a/1", f"{number}", 1)
    first = client.expect(Publish)
    other = ruled.stage.connected("other")
    other.subscribe("$share/g/a/#", qos=1)
    ruled.reload()
    assert other.payloads(4) == ["1", "2", "3", "4"]
    client.send(Puback(first.packet_id))
    client.expect_nothing()


def test_a_durable_group_deals_nothing_more_to_a_member_that_loses_its_right(ruled):
    client = ruled.stage.connected("c", expiry=1000, receive_maximum=1)
    client.subscribe("$share/g/a/#", qos=1)
    for number in range(5):
        ruled.pub.publish("a/1", f"{number}", 1)
    first = client.expect(Publish)
    other = ruled.stage.connected("other", expiry=1000, receive_maximum=1)
    other.subscribe("$share/g/a/#", qos=1)
    ruled.reload()
    client.send(Puback(first.packet_id))
    client.expect_nothing()
    came = other.payloads(4)
    assert sorted([first.payload.decode(), *came]) == ["0", "1", "2", "3", "4"]


# Who may not be there


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "users"
    for name in ("ann", "bob"):
        set_password(path, name, b"right", scram=True)
    return path


def test_clients_of_a_deleted_user_are_disconnected_without_their_will(stages, users, version):
    stage = stages(security=Security(password_file=str(users)))
    watcher = stage.connected("w", user_name="bob", password=b"right")
    watcher.subscribe("will/#")
    client = stage.connected("c", version, user_name="ann", password=b"right", will=Will("will/c", b"x"))
    nobody = stage.connected("anonymous")
    delete_user(users, "ann")
    stage.call(stage.inside.reload)
    client.expect_closed(Reason.ADMINISTRATIVE_ACTION)
    stage.offline("c")
    watcher.expect_nothing()
    nobody.expect_nothing()
    assert (stage.broker.metrics.expelled, stage.broker.metrics.refused, stage.broker.metrics.wills) == (1, 1, 0)


def test_a_user_whose_password_changes_stays_connected(stages, users):
    stage = stages(security=Security(password_file=str(users)))
    client = stage.connected("c", user_name="ann", password=b"right")
    set_password(users, "ann", b"other")
    stage.call(stage.inside.reload)
    client.expect_nothing()


def scram_final(server_first: bytes, password: bytes = b"right") -> bytes:
    """The client's last message to a first one of `n,,n=ann,r=x`."""
    fields = dict(one.split("=", 1) for one in server_first.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password, base64.b64decode(fields["s"]), int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    final = f"c=biws,r={fields['r']}"
    message = f"n=ann,r=x,{server_first.decode()},{final}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{final},p={base64.b64encode(proof).decode()}".encode()


def begin_scram(client):
    more = Properties(authentication_method="SCRAM-SHA-256", authentication_data=b"n,,n=ann,r=x")
    client.send(Connect(5, "c", properties=more))
    answer = client.expect(Auth).properties.authentication_data
    return Properties(authentication_method="SCRAM-SHA-256", authentication_data=scram_final(answer))


def test_a_user_of_scram_that_is_deleted_goes_and_one_on_its_way_does_not_get_in(stages, users):
    stage = stages(security=Security(password_file=str(users)))
    client, late = stage.client(), stage.client()
    client.send(Auth(Reason.CONTINUE_AUTHENTICATION, begin_scram(client)))
    assert client.expect(Connack).reason is Reason.SUCCESS
    proof = begin_scram(late)
    delete_user(users, "ann")
    stage.call(stage.inside.reload)
    client.expect_closed(Reason.ADMINISTRATIVE_ACTION)
    late.send(Auth(Reason.CONTINUE_AUTHENTICATION, proof))
    assert late.expect(Connack).reason is Reason.NOT_AUTHORIZED
