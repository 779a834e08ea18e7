"""Clients that have sent nothing for longer than their keep alive allows [MQTT-3.1.2-22]."""

from collections.abc import Sequence

from everlog.broker.metrics import Metrics
from everlog.broker.registry.served import Client
from everlog.broker.turns import Steps
from everlog.mqtt import Reason

_SLICE = 200  # clients in one step: less than a tenth of a millisecond


def close_silent(clients: Sequence[Client], now: float, metrics: Metrics) -> Steps:
    """Close those that have fallen silent, in steps: there may be tens of thousands to look at."""
    for start in range(0, len(clients), _SLICE):
        for client in clients[start : start + _SLICE]:
            if client.keep_alive_s and now - client.last_seen > client.keep_alive_s:
                metrics.keep_alive_timeouts += 1
                client.close(Reason.KEEP_ALIVE_TIMEOUT, "keep alive timeout")
        yield
