"""The options that `pub` and `sub` share, under the names that Mosquitto's clients gave them, and what they mean."""

import ssl
import uuid
from dataclasses import dataclass
from typing import Annotated, TypeAlias
from urllib.parse import unquote, urlsplit

import typer

from everlog.base import UsageError
from everlog.mqtt import NO_PROPERTIES, Connect, Properties, Will

VERSIONS = {
    **dict.fromkeys(("5", "v5", "mqttv5", "5.0"), 5),
    **dict.fromkeys(("311", "3.1.1", "4", "mqttv311"), 4),
    **dict.fromkeys(("31", "3.1", "3", "mqttv31"), 3),
}
NEVER = 0xFFFF_FFFF  # a session that does not expire
Tls: TypeAlias = ssl.SSLContext | None

Host: TypeAlias = Annotated[str, typer.Option("-h", "--host", metavar="HOST", help="The broker's address.")]
Port: TypeAlias = Annotated[
    int | None, typer.Option("-p", "--port", metavar="PORT", min=1, max=65_535, help="1883, or 8883 with TLS.")
]
Url: TypeAlias = Annotated[
    str | None, typer.Option("-L", "--url", metavar="URL", help="mqtt[s]://[user[:password]@]host[:port]/topic")
]
Qos: TypeAlias = Annotated[int, typer.Option("-q", "--qos", min=0, max=2, metavar="QOS", help="0, 1 or 2.")]
ClientId: TypeAlias = Annotated[str | None, typer.Option("-i", "--id", metavar="ID", help="The client id.")]
User: TypeAlias = Annotated[str | None, typer.Option("-u", "--username", metavar="USER", help="The user name.")]
Password: TypeAlias = Annotated[str | None, typer.Option("-P", "--pw", metavar="PASSWORD", help="The password.")]
Version: TypeAlias = Annotated[
    str, typer.Option("-V", "--protocol-version", metavar="VERSION", help="5, 311 or 31; mqttv5 and so on too.")
]
Durable: TypeAlias = Annotated[
    bool, typer.Option("-c", "--disable-clean-session", help="Keep the session, and take it up again; needs -i.")
]
Expiry: TypeAlias = Annotated[
    int | None,
    typer.Option("-x", "--session-expiry-interval", metavar="SECONDS", help="How long the session outlives us."),
]
KeepAlive: TypeAlias = Annotated[
    int, typer.Option("-k", "--keepalive", metavar="SECONDS", min=0, max=65_535, help="Ping when idle; 0 never.")
]
CaFile: TypeAlias = Annotated[
    str | None, typer.Option("--cafile", metavar="FILE", help="TLS: who signed the broker's certificate.")
]
CaSystem: TypeAlias = Annotated[bool, typer.Option("--tls-use-os-certs", help="TLS with the system's authorities.")]
Cert: TypeAlias = Annotated[str | None, typer.Option("--cert", metavar="FILE", help="TLS: our certificate.")]
CertKey: TypeAlias = Annotated[str | None, typer.Option("--key", metavar="FILE", help="TLS: its private key.")]
Insecure: TypeAlias = Annotated[
    bool, typer.Option("--insecure", help="TLS: accept a certificate for another host name.")
]
WillTopic: TypeAlias = Annotated[str | None, typer.Option("--will-topic", metavar="TOPIC", help="Topic of a will.")]
WillPayload: TypeAlias = Annotated[str, typer.Option("--will-payload", metavar="TEXT", help="Its payload.")]
WillQos: TypeAlias = Annotated[int, typer.Option("--will-qos", min=0, max=2, metavar="QOS", help="Its QoS.")]
WillRetain: TypeAlias = Annotated[bool, typer.Option("--will-retain", help="Retain the will.")]
UserProperties: TypeAlias = Annotated[
    list[str] | None, typer.Option("--user-property", metavar="KEY=VALUE", help="MQTT 5; repeatable.")
]


@dataclass(frozen=True, slots=True)
class Call:
    """Whom to call and what to say first; `topic` is that of a URL."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    connect: Connect
    topic: str | None = None


def plan_call(
    *,
    host: str,
    port: int | None,
    url: str | None,
    client_id: str | None,
    user: str | None,
    password: str | None,
    version: str,
    durable: bool,
    expiry: int | None,
    keep_alive: int,
    cafile: str | None,
    system_cas: bool,
    cert: str | None,
    cert_key: str | None,
    insecure: bool,
    will: Will | None,
) -> Call:
    """What the options mean together."""
    number = version_number(version)
    topic, with_tls = None, bool(cafile or system_cas or cert)
    if url is not None:
        address = parse_url(url)
        host, port, topic = address.host, address.port, address.topic
        user, password = address.user or user, address.password or password
        with_tls = with_tls or address.tls
    if durable and not client_id:
        raise UsageError("-c needs a client id", hint="give one with -i")
    if number == 5:
        lasts = expiry if expiry is not None else NEVER if durable else None
        properties = Properties(session_expiry_interval=lasts) if lasts is not None else NO_PROPERTIES
    elif expiry is not None:
        raise UsageError("-x needs MQTT 5", hint="use -V 5")
    else:
        properties = NO_PROPERTIES
    connect = Connect(
        version=number,
        client_id=client_id or (f"everlog-{uuid.uuid4().hex[:12]}" if number == 3 else ""),
        clean_start=not durable,
        keep_alive=keep_alive,
        will=will,
        user_name=user,
        password=None if password is None else password.encode(),
        properties=properties,
    )
    tls = tls_context(cafile, cert, cert_key, insecure) if with_tls else None
    return Call(host, port or (8883 if tls else 1883), tls, connect, topic)


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL says."""

    host: str
    port: int | None
    tls: bool
    user: str | None
    password: str | None
    topic: str


def parse_url(url: str) -> Address:
    """`mqtt://user:password@host:port/topic`, or `mqtts://`."""
    hint = "write it like mqtt://host:1883/topic"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"-L {url!r}: {error}", hint=hint) from None
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or len(parts.path) < 2:
        raise UsageError(f"-L {url!r} is no address of a topic", hint=hint)
    _, _, topic = url.partition("://")[2].partition("/")  # as it stands: ? and # are part of a filter
    user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    return Address(parts.hostname, port, parts.scheme == "mqtts", user, password, topic)


def version_number(text: str) -> int:
    """3, 4 or 5."""
    number = VERSIONS.get(text.lower())
    if number is None:
        raise UsageError(f"-V {text!r} is no version of MQTT", hint="use 5, 311 or 31")
    return number


def will_of(topic: str | None, payload: str, qos: int, retain: bool) -> Will | None:
    """The will, if it has a topic."""
    if topic is None:
        if payload or qos or retain:
            raise UsageError("a will without a topic", hint="give --will-topic")
        return None
    return Will(topic, payload.encode(), qos, retain)


def tls_context(cafile: str | None, cert: str | None, key: str | None, insecure: bool) -> ssl.SSLContext:
    """TLS that always checks who signed the broker's certificate."""
    try:
        context = ssl.create_default_context(cafile=cafile)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(name for name in (cafile, cert, key) if name)
        raise UsageError(f"TLS with {files}: {error}", hint="they must be readable PEM files") from error
    context.check_hostname = not insecure
    return context


def pairs(texts: list[str] | None) -> tuple[tuple[str, str], ...]:
    """`KEY=VALUE` texts as user properties."""
    for text in texts or []:
        if "=" not in text:
            raise UsageError(f"--user-property {text!r} is not KEY=VALUE")
    return tuple((key, value) for key, _, value in (text.partition("=") for text in texts or []))
