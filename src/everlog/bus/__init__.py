"""bus: bytes between processes over plain publish and subscribe, by MQTT, by NATS or within one process."""

from everlog.bus.addresses import make_bus
from everlog.bus.local_bus import LocalBus, LocalHub
from everlog.bus.mqtt_bus import Dialer, MqttAddress, MqttBus
from everlog.bus.nats_bus import NatsAddress, NatsBus
from everlog.bus.port import Bus, Delivery, Handler, NotAllowed, Subscription, Watcher, check_subject
