"""QoS 2 across brokers: every step of both ways, when the client moves politely or since its broker was killed.

A client has sent or got the packet that a step is called by, and nothing behind it, when it connects elsewhere. What it
sends is there once, and what it gets it gets once.
"""

from collections import defaultdict
from pathlib import Path

import pytest
from tests.cluster_processes import ProcessCluster
from tests.raw_client import RawClient

from everlog.mqtt import Pubcomp, Publish, Pubrec, Pubrel

STEPS = ("PUBLISH", "PUBREC", "PUBREL", "PUBCOMP")
EXPIRY_S = 600


def begin_to_send(client: RawClient, step: str) -> None:
    """Go as far as a step with a message of the client's."""
    client.send(Publish(f"in/{step}", b"once", qos=2, packet_id=7))
    if step != "PUBLISH":
        assert client.expect(Pubrec).packet_id == 7
    if step in ("PUBREL", "PUBCOMP"):
        client.send(Pubrel(7))
    if step == "PUBCOMP":
        client.expect(Pubcomp)


def go_on_sending(client: RawClient, step: str) -> None:
    """Go on as a client has to that knows of nothing behind the step: the answer to it may be lost."""
    if step in ("PUBLISH", "PUBREC"):
        client.send(Publish(f"in/{step}", b"once", qos=2, packet_id=7, dup=True))
        assert not client.expect(Pubrec).reason.is_error
    if step != "PUBCOMP":
        client.send(Pubrel(7))
        client.expect(Pubcomp)
    assert not client.publish(f"in/{step}", b"next", qos=2).is_error


def begin_to_receive(client: RawClient, step: str) -> int:
    """Go as far as a step with a message for the client, and return its packet id."""
    packet_id = client.expect(Publish).packet_id
    if step != "PUBLISH":
        client.send(Pubrec(packet_id))
    if step in ("PUBREL", "PUBCOMP"):
        client.expect(Pubrel)
    if step == "PUBCOMP":
        client.send(Pubcomp(packet_id))
    return packet_id


def go_on_receiving(client: RawClient, step: str, packet_id: int) -> None:
    """Take what comes until the next message: the first one again only where nobody can know that it had come."""
    again = 0
    while True:
        packet = client.receive()
        if isinstance(packet, Pubrel):
            client.send(Pubcomp(packet.packet_id))
            continue
        assert isinstance(packet, Publish)
        client.send(Pubrec(packet.packet_id))
        if packet.payload == b"next":
            break
        assert packet.dup, "a second message, for all that the client can tell"
        assert packet.packet_id == packet_id
        again += 1
    assert again == 1 if step == "PUBLISH" else again == 0 or step == "PUBREC"


@pytest.mark.slow
@pytest.mark.parametrize("move", ["asked for", "killed"])
def test_a_client_that_moves_amidst_qos_2_sends_and_gets_each_message_once(tmp_path: Path, move: str) -> None:
    with ProcessCluster(tmp_path, 3) as cluster:
        one, two, three = (cluster.add(name) for name in ("one", "two", "three"))
        cluster.until_spread(3)
        reader, publisher = one.client("reader"), one.client("publisher")
        reader.subscribe("in/#", qos=1)
        for step in STEPS:
            begin_to_send(two.client(f"sends-{step}", expiry=EXPIRY_S), step)
        ids: dict[str, int] = {}
        for step in STEPS:
            client = two.client(f"gets-{step}", expiry=EXPIRY_S)
            client.subscribe(f"out/{step}", qos=2)
            publisher.publish(f"out/{step}", b"once", qos=2)
            ids[step] = begin_to_receive(client, step)
        if move == "killed":
            two.kill()
        for step in STEPS:
            go_on_sending(three.client(f"sends-{step}", clean_start=False, expiry=EXPIRY_S), step)
            client = three.client(f"gets-{step}", clean_start=False, expiry=EXPIRY_S)
            assert three.connack.session_present
            publisher.publish(f"out/{step}", b"next", qos=2)
            go_on_receiving(client, step, ids[step])
        found: dict[str, list[bytes]] = defaultdict(list)
        while sum(len(payloads) for payloads in found.values()) < 2 * len(STEPS):
            message = reader.message()
            found[message.topic].append(message.payload)
        reader.expect_nothing()
        assert found == {f"in/{step}": [b"once", b"next"] for step in STEPS}
