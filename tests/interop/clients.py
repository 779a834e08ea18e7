"""Other people's clients as tests use them, and what they got."""

import threading
from concurrent.futures import Future

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties


class Got:
    """Messages as a client's own thread gathers them, and a future for the moment when there are enough."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes, int, bool]] = []
        self._wanted = 0
        self._enough: Future[None] = Future()

    def add(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        """One more message."""
        self.messages.append((topic, payload, qos, bool(retain)))
        if len(self.messages) == self._wanted:
            self._enough.set_result(None)

    def wait(self, count: int, seconds: float = 20) -> list[tuple[str, bytes, int, bool]]:
        """The messages, once there are so many; no more may have come."""
        self._wanted = count
        if len(self.messages) < count:
            self._enough.result(seconds)
        self._enough = Future()
        assert len(self.messages) == count
        return self.messages


class PahoClient:
    """A paho client with its network thread, connected."""

    def __init__(self, broker, version, name, clean=True, expiry=0, will=None, keepalive=60):
        five = version == paho.MQTTv5
        options = {} if five else {"clean_session": clean}
        self.paho = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=version, **options)
        self.got = Got()
        self.session_present = None
        self._connected = threading.Event()
        self._subscribed = threading.Event()
        self._gone = threading.Event()
        self.paho.on_connect = self._on_connect
        self.paho.on_subscribe = lambda *_: self._subscribed.set()
        self.paho.on_disconnect = lambda *_: self._gone.set()
        self.paho.on_message = lambda _c, _u, one: self.got.add(one.topic, one.payload, one.qos, one.retain)
        if will is not None:
            self.paho.will_set(*will)
        connect = {}
        if five:
            connect["clean_start"] = clean
            connect["properties"] = Properties(PacketTypes.CONNECT)
            connect["properties"].SessionExpiryInterval = expiry
        self.paho.connect("127.0.0.1", broker.port, keepalive, **connect)
        self.paho.loop_start()
        assert self._connected.wait(10)

    def _on_connect(self, _client, _data, flags, reason, _properties):
        assert not reason.is_failure
        self.session_present = flags.session_present
        self._connected.set()

    def subscribe(self, *arguments, **options):
        self._subscribed.clear()
        self.paho.subscribe(*arguments, **options)
        assert self._subscribed.wait(10)

    def publish(self, topic, payload, qos=0, retain=False):
        self.paho.publish(topic, payload, qos, retain).wait_for_publish(10)

    def stop(self):
        self.paho.disconnect()
        assert self._gone.wait(10)
        self.paho.loop_stop()

    def drop(self):
        """Lose the connection without a DISCONNECT, and stay away."""
        self.paho.loop_stop()
        self.paho.socket().close()
