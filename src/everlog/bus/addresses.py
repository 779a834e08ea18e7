"""The addresses of a bus in one text, such as `nats://a,nats://b:4223` or `mqtts://user:password@host`."""

import ssl
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from everlog.base import UsageError
from everlog.bus.mqtt_bus import DEFAULT_PORT as MQTT_PORT
from everlog.bus.mqtt_bus import DEFAULT_TLS_PORT, MqttAddress, MqttBus
from everlog.bus.nats_bus import DEFAULT_PORT as NATS_PORT
from everlog.bus.nats_bus import NatsAddress, NatsBus
from everlog.bus.port import Bus

_HINT = "write it like mqtt://localhost:1883, mqtts://user:password@host or nats://host:4222; several with commas"
_MQTT, _NATS = ("mqtt", "mqtts"), ("nats", "tls")


def make_bus(text: str) -> Bus:
    """Return the bus of an address, or of several of one kind separated by commas; it is not open yet."""
    parts = [_split(one.strip()) for one in text.split(",") if one.strip()]
    schemes = {one.scheme for one in parts}
    if parts and schemes <= set(_NATS):
        return NatsBus(
            [
                NatsAddress(one.hostname or "", one.port or NATS_PORT, *_login(one), tls=_tls(one, one.scheme == "tls"))
                for one in parts
            ]
        )
    if parts and schemes <= set(_MQTT):
        client_id = parse_qs(parts[0].query).get("client_id", [""])[0]
        addresses = []
        for one in parts:
            tls = _tls(one, one.scheme == "mqtts")
            port = one.port or (MQTT_PORT if tls is None else DEFAULT_TLS_PORT)
            addresses.append(MqttAddress(one.hostname or "", port, *_login(one), tls=tls))
        return MqttBus(addresses, client_id)
    raise UsageError(f"{text!r} is not the address of a bus", hint=_HINT)


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        bad = not parts.hostname or (parts.port is not None and not parts.port) or parts.path not in ("", "/")
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}", hint=_HINT) from None
    if bad:
        raise UsageError(f"{text!r} is not the address of a bus", hint=_HINT)
    return parts


def _login(parts: SplitResult) -> tuple[str | None, str | None]:
    user, password = parts.username, parts.password
    return None if user is None else unquote(user), None if password is None else unquote(password)


def _tls(parts: SplitResult, wanted: bool) -> ssl.SSLContext | None:
    """Return how to trust a server: by `?cafile=FILE`, or by the system's authorities."""
    cafile = parse_qs(parts.query).get("cafile", [None])[0]
    if not wanted:
        return None
    try:
        return ssl.create_default_context(cafile=cafile)
    except OSError as error:
        raise UsageError(f"{cafile}: {error}", hint="cafile names who signed the server's certificate (PEM)") from None
