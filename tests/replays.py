"""Publishers and subscribers of history, on a stage."""

from everlog.mqtt import Properties, Suback, Subscribe, Subscription
from tests.raw_client import RawClient
from tests.stages import Stage

KEEP_ALL = [("#", 0)]  # of a broker: it keeps every message
KEEP: dict[str, bool | int] = {"clean_start": False, "expiry": 1000}  # of a client: it has a session that stays
MINUTE_US = 60_000_000


def filled(stage: Stage, count: int = 10, topic: str = "t", qos: int = 1, first: int = 0) -> None:
    """Publish numbers, a minute apart, until each is acknowledged."""
    client = stage.connected("publisher")
    for number in range(first, first + count):
        client.publish(topic, str(number), qos)
        stage.now_us += MINUTE_US
    client.disconnect()


def replay(
    client: RawClient,
    begin: str | None,
    *filters: str | Subscription,
    qos: int = 1,
    position: bool = False,
    live: bool = False,
    publisher: bool = False,
    identifier: int = 0,
) -> Suback:
    """Subscribe to history from there on; the SUBACK."""
    pairs = [("everlog-from", begin)] if begin is not None else []
    pairs += [("everlog-position", "yes")] * position + [("everlog-live", "yes")] * live
    pairs += [("everlog-publisher", "yes")] * publisher
    subscriptions = tuple(one if isinstance(one, Subscription) else Subscription(one, qos) for one in filters)
    identifiers = (identifier,) if identifier else ()
    properties = Properties(user_properties=tuple(pairs), subscription_identifiers=identifiers)
    client.send(Subscribe(client.packet_id(), subscriptions, properties))
    return client.answer(Suback)
