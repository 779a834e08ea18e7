"""What the broker counts; plain numbers, read by whoever shows them."""

from dataclasses import dataclass


@dataclass(slots=True)
class Metrics:
    """Counters since start."""

    connects: int = 0
    connects_refused: int = 0
    connects_limited: int = 0
    disconnects: int = 0
    protocol_errors: int = 0
    auth_failures: int = 0
    takeovers: int = 0
    keep_alive_timeouts: int = 0
    connect_timeouts: int = 0
    duplicates: int = 0  # QoS 2 messages that came again
    refused: int = 0  # messages that were not allowed
    retained_refused: int = 0
    subscribes: int = 0
    subscribes_refused: int = 0
    over_quota: int = 0  # clients too slow for their QoS 1 and 2 messages
    held_back: int = 0  # times that reading stopped because too much was under way
    wills: int = 0
    table_resets: int = 0
