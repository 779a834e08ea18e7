"""A message of nearly 16 MiB goes through a real broker: live, retained, kept for a client that is away, and back."""

from hashlib import sha256
from pathlib import Path
from random import Random

from tests.broker_process import BrokerProcess


def test_a_message_of_nearly_16_mib_arrives(tmp_path: Path) -> None:
    payload = Random(1).randbytes((16 << 20) - 100)
    with BrokerProcess(tmp_path) as broker, broker.client() as live, broker.client(4) as publisher:
        live.connect("live")
        live.subscribe("large/#", qos=2)
        with broker.client(4) as away:
            away.connect("away", clean_start=False)
            away.subscribe("large/#", qos=1)
        publisher.connect("publisher")
        for number in range(3):
            publisher.publish(f"large/{number}", payload, qos=number, retain=number == 2)
        found = [live.message() for _ in range(3)]
        with broker.client(4) as away:
            away.connect("away", clean_start=False)
            found += [away.message() for _ in range(3)]
        with broker.client() as late:
            late.connect("late")
            late.subscribe("large/+")
            found.append(late.message())
        assert [message.topic[-1] for message in found] == list("0120122")
        assert {sha256(message.payload).digest() for message in found} == {sha256(payload).digest()}
