"""The options of every command that connects to a broker, under the names that Mosquitto's clients gave them."""

import ssl
import uuid
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeAlias
from urllib.parse import unquote, urlsplit

import typer

from everlog.base import PeerError, UsageError
from everlog.cli.client.packet_properties import merged, parse_properties
from everlog.mqtt import NO_PROPERTIES, Connect, Properties, Will
from everlog.topics import Filter, parse_filter

VERSIONS = {
    **dict.fromkeys(("5", "v5", "mqttv5", "5.0"), 5),
    **dict.fromkeys(("311", "3.1.1", "4", "mqttv311"), 4),
    **dict.fromkeys(("31", "3.1", "3", "mqttv31"), 3),
}
NEVER = 0xFFFF_FFFF  # a session that does not expire
OF_PUB_AND_SUB = (
    "url",
    "durable",
    "expiry",
    "keepalive",
    "will_topic",
    "will_payload",
    "will_qos",
    "will_retain",
    "bind",
    "options",
    "debug",
    "quiet",
)

Qos: TypeAlias = Annotated[int, typer.Option("-q", "--qos", min=0, max=2, metavar="QOS", help="0, 1 or 2.")]
UserProperties: TypeAlias = Annotated[
    list[str] | None, typer.Option("--user-property", metavar="KEY=VALUE", help="MQTT 5; repeatable.")
]


@dataclass(frozen=True, slots=True)
class Target:
    """The server to connect to and the CONNECT to send; `topic` is that of a URL."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    connect: Connect
    topic: str | None = None
    bind: str | None = None  # the address of ours to connect from
    websocket: str | None = None  # the URL, if it is to be reached by WebSocket
    debug: bool = False  # tell of packets
    quiet: bool = False  # tell of nothing
    properties: dict[str, Properties] = field(default_factory=dict)  # of other packets than the CONNECT


def parse_target(
    host: Annotated[str, typer.Option("-h", "--host", metavar="HOST", help="The broker's address.")] = "localhost",
    port: Annotated[
        int | None, typer.Option("-p", "--port", metavar="PORT", min=1, max=65_535, help="1883, or 8883 with TLS.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("-L", "--url", metavar="URL", help="mqtt[s]:// or ws[s]://[user[:password]@]host[:port]/topic"),
    ] = None,
    client_id: Annotated[str | None, typer.Option("-i", "--id", metavar="ID", help="The client id.")] = None,
    username: Annotated[str | None, typer.Option("-u", "--username", metavar="USER", help="The user name.")] = None,
    pw: Annotated[str | None, typer.Option("-P", "--pw", metavar="PASSWORD", help="The password.")] = None,
    protocol_version: Annotated[
        str, typer.Option("-V", "--protocol-version", metavar="VERSION", help="5, 311 or 31; mqttv5 and so on too.")
    ] = "5",
    durable: Annotated[
        bool, typer.Option("-c", "--disable-clean-session", help="Keep the session, and take it up again; needs -i.")
    ] = False,
    expiry: Annotated[
        int | None,
        typer.Option("-x", "--session-expiry-interval", metavar="SECONDS", help="How long the session outlives us."),
    ] = None,
    keepalive: Annotated[
        int, typer.Option("-k", "--keepalive", metavar="SECONDS", min=0, max=65_535, help="Ping when idle; 0 never.")
    ] = 60,
    cafile: Annotated[
        str | None, typer.Option(metavar="FILE", help="TLS: who signed the broker's certificate.")
    ] = None,
    capath: Annotated[str | None, typer.Option(metavar="DIR", help="TLS: a directory of who may have.")] = None,
    os_certs: Annotated[bool, typer.Option("--tls-use-os-certs", help="TLS with the system's authorities.")] = False,
    cert: Annotated[str | None, typer.Option(metavar="FILE", help="TLS: our certificate.")] = None,
    key: Annotated[str | None, typer.Option(metavar="FILE", help="TLS: its private key.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="TLS: accept a certificate for another host name.")
    ] = False,
    will_topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Topic of a will.")] = None,
    will_payload: Annotated[str, typer.Option(metavar="TEXT", help="Its payload.")] = "",
    will_qos: Annotated[int, typer.Option(min=0, max=2, metavar="QOS", help="Its QoS.")] = 0,
    will_retain: Annotated[bool, typer.Option("--will-retain", help="Retain the will.")] = False,
    bind: Annotated[
        str | None, typer.Option("-A", metavar="ADDRESS", help="Connect from this address of ours.")
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "-D", "--property", metavar="COMMAND PROPERTY VALUE", help="Such as: -D publish content-type text/plain."
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("-d", "--debug", help="Tell what is sent and received.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing when something fails.")] = False,
) -> Target:
    """Return what the options mean together."""
    version, topic, with_tls = parse_version(protocol_version), None, bool(cafile or capath or os_certs or cert)
    if url is not None:
        address = parse_url(url)
        host, port, topic = address.host, address.port, address.topic
        username, pw = address.user or username, address.password or pw
        with_tls = with_tls or address.tls
    properties, websocket = parse_properties(options or ()), None
    if url is not None and address.websocket:
        shown = f"[{host}]" if ":" in host else host
        websocket = f"{'wss' if address.tls else 'ws'}://{shown}:{port or (8084 if address.tls else 8083)}/mqtt"
    if properties and version != 5:
        raise UsageError("-D needs MQTT 5", hint="use -V 5")
    will = make_will(will_topic, will_payload, will_qos, will_retain)
    if "will" in properties:
        if will is None:
            raise UsageError("-D will without a will", hint="give --will-topic")
        will = Will(will.topic, will.payload, will.qos, will.retain, properties["will"])
    if durable and not client_id:
        raise UsageError("-c needs a client id", hint="give one with -i")
    if expiry is not None and version != 5:
        raise UsageError("-x needs MQTT 5", hint="use -V 5")
    if expiry is None and durable and version == 5:
        expiry = NEVER
    connect = Connect(
        version=version,
        client_id=client_id or (f"everlog-{uuid.uuid4().hex[:12]}" if version == 3 else ""),
        clean_start=not durable,
        keep_alive=keepalive,
        will=will,
        user_name=username,
        password=None if pw is None else pw.encode(),
        properties=merged(
            NO_PROPERTIES if expiry is None else Properties(session_expiry_interval=expiry),
            properties.get("connect", NO_PROPERTIES),
        ),
    )
    tls = _tls_context(cafile, capath, cert, key, insecure) if with_tls else None
    target = Target(host, port or (8883 if tls else 1883), tls, connect, topic, bind, websocket, debug, quiet)
    return replace(target, properties=properties)


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a URL."""

    host: str
    port: int | None
    tls: bool
    user: str | None
    password: str | None
    topic: str
    websocket: bool = False


def parse_url(url: str) -> Address:
    """Parse `mqtt://user:password@host:port/topic`, or `mqtts://`, `ws://`, `wss://`."""
    hint = "write it like mqtt://host:1883/topic"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"-L {url!r}: {error}", hint=hint) from None
    if parts.scheme not in ("mqtt", "mqtts", "ws", "wss") or not parts.hostname or len(parts.path) < 2:
        raise UsageError(f"-L {url!r} is not the address of a topic", hint=hint)
    _, _, topic = url.partition("://")[2].partition("/")  # as it stands: ? and # are part of a filter
    user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    tls, websocket = parts.scheme in ("mqtts", "wss"), parts.scheme in ("ws", "wss")
    return Address(parts.hostname, port, tls, user, password, topic, websocket)


def parse_version(text: str) -> int:
    """Return the protocol level that a version names: 3, 4 or 5."""
    number = VERSIONS.get(text.lower())
    if number is None:
        raise UsageError(f"-V {text!r} is not a version of MQTT", hint="use 5, 311 or 31")
    return number


def make_will(topic: str | None, payload: str, qos: int, retain: bool) -> Will | None:
    """Return the will, if it has a topic."""
    if topic is None:
        if payload or qos or retain:
            raise UsageError("a will without a topic", hint="give --will-topic")
        return None
    return Will(topic, payload.encode(), qos, retain)


def parse_pairs(texts: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Parse `KEY=VALUE` texts as user properties."""
    for text in texts or []:
        if "=" not in text:
            raise UsageError(f"--user-property {text!r} is not KEY=VALUE")
    return tuple((key, value) for key, _, value in (text.partition("=") for text in texts or []))


def parse_filter_option(text: str) -> Filter:
    """Parse a topic filter of the command line."""
    try:
        return parse_filter(text)
    except PeerError as error:
        raise UsageError(f"{text!r} is not a topic filter: {error.message}", hint="write it like sensors/#") from None


def _tls_context(
    cafile: str | None, capath: str | None, cert: str | None, key: str | None, insecure: bool
) -> ssl.SSLContext:
    """Return a context that always checks who signed the broker's certificate."""
    try:
        context = ssl.create_default_context(cafile=cafile, capath=capath)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(name for name in (cafile, capath, cert, key) if name)
        raise UsageError(f"TLS with {files}: {error}", hint="they must be readable PEM files") from error
    context.check_hostname = not insecure
    return context
