"""bus: bytes between processes over plain publish and subscribe, by MQTT, by NATS or within one process."""

from everlog.bus.addresses import make_bus
from everlog.bus.delivery import Delivery, new_delivery
from everlog.bus.frames import (
    AGAIN,
    HEADER_BYTES,
    LAST,
    MAX_FRAME,
    MAX_WINDOW,
    VERSION,
    Assembly,
    BadFrame,
    Frame,
    FrameKind,
    decode_frame,
    encode_frame,
    split_frame,
)
from everlog.bus.greeting import Welcome
from everlog.bus.local_bus import LocalBus, LocalHub
from everlog.bus.mqtt_bus import Dialer, MqttAddress, MqttBus
from everlog.bus.nats_bus import NatsAddress, NatsBus
from everlog.bus.nats_subjects import to_nats
from everlog.bus.port import Bus, Handler, NotAllowed, Subscription, Watcher, check_subject
from everlog.bus.subjects import (
    ADMINISTER,
    HELLO,
    MOVES,
    PREFIX,
    READ,
    WRITE,
    Place,
    feed_subject,
    parse_request,
    request_patterns,
    request_subject,
    shard_of_name,
    up_subject,
)
