"""What a client can make the broker hold, and where that ends, seen from the wire."""

import socket
import threading
import time
from contextlib import suppress

import pytest
from tests.raw_client import DEADLINE_S, Closed

from everlog.broker import Limits, Security, set_password
from everlog.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Reason,
    Subscribe,
    Subscription,
    encode,
)


def known(stage):
    return stage.call(lambda: stage.inside.topics)


@pytest.mark.parametrize("name", ["x" * 101, "/" * 10, "a/" * 10 + "b", "ä" * 51])
def test_a_name_over_the_limits_is_refused_and_not_learnt(stages, version, name):
    stage = stages(limits=Limits(topic_bytes=100, topic_levels=10))
    client = stage.connected("c", version)
    client.publish("good", "x", 1)
    before = known(stage)
    client.send(Publish("also/good", b"x"), Publish(name, b"x"), Publish("never/read", b"x"))
    client.expect_closed(Reason.TOPIC_NAME_INVALID)
    assert known(stage) == before | {b"also/good"}
    assert stage.broker.metrics.protocol_errors == 1


@pytest.mark.parametrize("name", ["x" * 100, "/" * 9, "ä" * 50])
def test_a_name_at_the_limits_is_taken(stages, version, name):
    stage = stages(limits=Limits(topic_bytes=100, topic_levels=10))
    assert stage.connected("c", version).publish(name, "x", 1) is Reason.SUCCESS


def test_no_client_teaches_more_names_than_it_may(stages, version):
    stage = stages(limits=Limits(topics_per_client=50))
    client, other = stage.connected("c", version), stage.connected("o", version)
    other.publish("o/1", "x", 1)
    before = known(stage)
    client.send(*(Publish(f"c/{k % 50}", b"x") for k in range(200)), Publish("o/1", b"x"))
    client.publish("c/0", "x", 1)
    client.send(*(Publish(f"more/{k}", b"x") for k in range(100)))
    client.expect_closed(Reason.QUOTA_EXCEEDED)
    assert known(stage) == before | {b"c/%d" % k for k in range(50)}
    assert other.publish("o/2", "x", 1) is Reason.SUCCESS


def test_names_are_forgotten_when_they_take_too_many_bytes(stages):
    stage = stages(limits=Limits(topics_bytes=10_000))
    watcher, client = stage.connected("w"), stage.connected("c")
    watcher.subscribe("a/#", qos=1)
    for k in range(100):
        client.publish(f"a/{k}/{'x' * 900}", str(k), 1)
        assert stage.inside.topic_bytes <= 11_000
    assert watcher.payloads(100) == [str(k) for k in range(100)]
    assert stage.broker.metrics.table_resets >= 8


def at(stage, seconds):
    """The broker's clock stands still, so many seconds from now."""
    now = stage.call(stage.broker.time) + seconds
    stage.inside.set_clock(lambda: now)


def test_bytes_that_end_no_packet_are_no_sign_of_life(stage, version):
    client, patient = stage.client(version), stage.connected("p", version, keep_alive=10)
    client.connect("c", keep_alive=10)
    at(stage, 14)
    for byte in encode(Publish("a", b"x" * 60), version)[:50]:
        client.send_bytes(bytes((byte,)))
    stage.until(lambda: stage.inside.unfinished_bytes == 50)
    patient.send(Pingreq())
    patient.expect(Pingresp)
    stage.call(lambda: stage.inside.sweep_clients(2))
    client.expect_closed(Reason.KEEP_ALIVE_TIMEOUT)
    assert stage.broker.metrics.keep_alive_timeouts == 1
    stage.until(lambda: stage.inside.unfinished_bytes == 0)
    patient.expect_nothing()


def test_a_large_message_on_its_way_is_a_sign_of_life(stage, version):
    client = stage.client(version)
    client.connect("c", keep_alive=10)
    message = encode(Publish("a", b"x" * 100_000, 1, packet_id=1), version)
    at(stage, 14)
    client.send_bytes(message[:50_000])
    stage.until(lambda: stage.inside.unfinished_bytes == 50_000)
    stage.call(lambda: stage.inside.sweep_clients(2))
    client.send_bytes(message[50_000:])
    assert client.expect(Puback).packet_id == 1


def test_whoever_holds_most_of_an_unfinished_packet_goes_first(stages, version):
    stage = stages(limits=Limits(unfinished_bytes=100_000, message_bytes=1_000_000))
    large, small = stage.connected("large", version), stage.connected("small", version)
    newcomer = stage.client(version)
    large.send_bytes(b"\x30\xff\xff\x03" + bytes(60_000))
    stage.until(lambda: stage.inside.unfinished_bytes >= 60_000)
    small.send_bytes(encode(Publish("a", b"x" * 35_000, 1, packet_id=1), version)[:30_000])
    stage.until(lambda: stage.inside.unfinished_bytes >= 90_000)
    newcomer.send_bytes(b"\x10\xff\xff\x03" + bytes(20_000))
    large.expect_closed(Reason.QUOTA_EXCEEDED)
    stage.until(lambda: stage.inside.unfinished_bytes == 50_004)
    assert stage.broker.metrics.unfinished == 1
    small.send_bytes(encode(Publish("a", b"x" * 35_000, 1, packet_id=1), version)[30_000:])
    small.receive()  # its PUBACK
    newcomer.close()
    stage.until(lambda: stage.inside.unfinished_bytes == 0)


def test_topics_may_be_deep_by_default(stage, version):
    client = stage.connected("c", version)
    client.subscribe("/".join(["+"] * 128))
    client.publish("/".join("a" * 128), b"deep")
    assert client.message().payload == b"deep"
    client.send(Publish("/".join("a" * 129), b"x"))
    client.expect_closed(Reason.TOPIC_NAME_INVALID)


def test_a_stalled_upload_goes_before_a_larger_one_that_goes_on(stages, version):
    stage = stages(limits=Limits(unfinished_bytes=200_000, message_bytes=1_000_000))
    message = encode(Publish("a", b"x" * 180_000, 1, packet_id=1), version)
    tiny, honest = stage.connected("tiny", version), stage.connected("honest", version)
    stalled = [stage.connected(f"s{number}", version) for number in range(3)]
    at(stage, 1)
    tiny.send_bytes(message[:10])
    for number, one in enumerate(stalled, 1):
        one.send_bytes(message[:20_000])
        stage.until(lambda number=number: stage.inside.unfinished_bytes == 10 + 20_000 * number)
    at(stage, 5)
    honest.send_bytes(message[:130_000])
    stage.until(lambda: stage.inside.unfinished_bytes == 190_010)
    at(stage, 6)
    honest.send_bytes(message[130_000:150_000])
    stage.until(lambda: stage.broker.metrics.unfinished == 1)
    honest.send_bytes(message[150_000:])
    assert honest.expect(Puback).packet_id == 1
    tiny.send_bytes(message[10:])
    assert tiny.expect(Puback).packet_id == 1
    for one in stalled:
        one.close()
    stage.until(lambda: stage.inside.unfinished_bytes == 0)


def test_packets_in_pieces_are_counted_until_they_are_whole(stage, version):
    client = stage.connected("c", version)
    message = encode(Publish("a", b"x" * 200_000, 1, packet_id=1), version)
    for at in range(0, len(message), 70_000):
        client.send_bytes(message[at : at + 70_000])
    client.receive()
    assert stage.inside.unfinished_bytes == 0


def test_nothing_is_read_from_who_does_not_read_its_answers(stages, version):
    stage = stages(limits=Limits(output_bytes=20_000))
    client = stage.client(version, receive_buffer=4096)
    client.connect("c")
    client.socket.setblocking(False)
    wire = stage.inside.transport("c").get_extra_info("socket")
    stage.call(lambda: wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096))  # else megabytes fit into it
    ping = encode(Pingreq(), version) * 10_000
    deadline, sent = time.monotonic() + DEADLINE_S, 0
    while stage.broker.metrics.unread_answers == 0:
        assert time.monotonic() < deadline
        with suppress(BlockingIOError):
            sent += client.socket.send(ping)
    held = stage.call(lambda: stage.inside.unsent_bytes("c"))
    assert 20_000 < held < 42_000  # at most one turn's answers more than twice the limit; some may have left since
    client.socket.settimeout(10)
    count = len(client.socket.recv(65536))
    while count < sent // 2 * 2:  # now it reads, and every ping is answered
        count += len(client.socket.recv(1 << 20))
    assert count == sent // 2 * 2


def test_a_slow_reader_that_goes_on_sending_is_heard(stages):
    stage = stages(limits=Limits(output_bytes=20_000))
    client = stage.connected("c")
    client.send(Subscribe(1, (Subscription("a"),)))
    client.receive()
    client.send(*(Publish("a", b"x" * 1000) for _ in range(3000)), Pingreq())
    seen = [client.receive() for _ in range(100)]
    assert all(isinstance(one, Publish | Pingresp) for one in seen)
    client.send(Disconnect())


@pytest.mark.parametrize("proven", [False, True])
def test_a_thousand_packets_in_one_piece_are_handled_in_their_order(stages, tmp_path, version, proven):
    set_password(tmp_path / "users", "ann", b"pw")
    security = Security(allow_anonymous=True, password_file=str(tmp_path / "users") if proven else None)
    stage = stages(security=security, limits=Limits(topics=600))  # so that names are forgotten in between
    watcher, client = stage.connected("w", version), stage.client(version)
    watcher.subscribe("t/#")
    pairs = [(Publish(f"t/{k}", b"%d" % k, 1, packet_id=k + 1), Pingreq()) for k in range(1000)]
    name, password = ("ann", b"pw") if proven else (None, None)
    hello = Connect(version, "c", user_name=name, password=password)
    client.send(hello, *(packet for pair in pairs for packet in pair), Disconnect())
    client.expect(Connack)
    answers = []
    with suppress(Closed):
        while True:
            answers.append(client.receive())
    assert [one.packet_id for one in answers if isinstance(one, Puback)] == list(range(1, 1001))
    assert sum(isinstance(one, Pingresp) for one in answers) == 1000
    assert watcher.payloads(1000) == [str(k) for k in range(1000)]


def test_others_have_their_turn_between_the_packets_of_one(stage):
    client, other = stage.connected("c", 4), stage.connected("o", 4)
    count = 400_000
    sending = threading.Thread(target=client.send_bytes, args=(encode(Pingreq(), 4) * count,))
    sending.start()  # else all of it may be done with before anybody looks
    stage.until(lambda: stage.inside.waits_its_turn("c"))
    other.send(Pingreq())
    other.expect(Pingresp)
    sent_so_far = stage.inside.bytes_out
    received = 0
    while received < 2 * count:
        received += len(client.socket.recv(1 << 20))
    sending.join()
    assert sent_so_far < 2 * count  # the other was answered in the midst of it
