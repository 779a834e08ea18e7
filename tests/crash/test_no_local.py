"""A client with No Local gets none of its own messages back from a broker that was killed or stopped."""

from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess
from tests.raw_client import RawClient

from everlog.mqtt import Subscription


def back(broker: BrokerProcess) -> RawClient:
    client = broker.client()
    client.connect("bridge", clean_start=False, expiry=100)
    return client


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_bridge_echoes_nothing_after_a_restart(tmp_path: Path, end: str) -> None:
    with BrokerProcess(tmp_path, "--set", "limits.inflight_messages=2") as broker:
        with back(broker) as bridge, broker.client() as other:
            other.connect("other")
            bridge.subscribe(Subscription("in/#", 1, no_local=True))
            for number in range(3):  # of which it takes two: the rest waits in the log
                bridge.publish("in/own", f"own {number}", qos=1)
                other.publish("in/other", f"other {number}", qos=1)
            getattr(broker, end)()
        broker.start()
        with back(broker) as bridge:
            bridge.publish("in/own", "own again", qos=1)
            assert bridge.payloads(3) == ["other 0", "other 1", "other 2"]
            bridge.expect_nothing()
