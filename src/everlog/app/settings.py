"""The one schema of everything that can be set: sections of keys, each with type, unit, default and meaning.

`Settings` is a frozen value; `load` (settings_loader.py) makes one from file, environment and flags. The `[limits]`
section is the broker's own `Limits`, so a limit is written down once.
"""

import ipaddress
import os
import shutil
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from everlog.app.units import parse_seconds
from everlog.base import UsageError
from everlog.broker import GroupOptions, Limits
from everlog.store import KeepRules, TopicClasses

BYTES: dict[str, Any] = {"unit": "bytes"}
DURATION: dict[str, Any] = {"unit": "duration"}
PATH: dict[str, Any] = {"unit": "path"}
Bytes: TypeAlias = Annotated[int, Meta(ge=1, extra=BYTES)]
FilePath: TypeAlias = Annotated[str, Meta(min_length=1, extra=PATH)]
DiskShare: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65_535)]

DEFAULT_HTTP_PORT = 9001


class Section(Struct, frozen=True, kw_only=True):
    """One table of `everlog.toml`; the description of a key is its documentation."""


class Listener(Section, frozen=True, kw_only=True):
    """Where clients connect."""

    host: Annotated[str, Meta(description="address of every MQTT listener; `0.0.0.0` or `::` for all interfaces")] = (
        "127.0.0.1"
    )
    port: Annotated[Port | None, Meta(description="plain MQTT; `0` takes any free port, `none` opens none")] = 1883
    tls_port: Annotated[Port | None, Meta(description="MQTT over TLS, usually 8883; needs `cert_file`")] = None
    websocket_port: Annotated[Port | None, Meta(description="MQTT over WebSocket, path `/mqtt` or `/`")] = None
    websocket_origins: Annotated[
        tuple[str, ...],
        Meta(description="other web pages that may connect by WebSocket, such as `https://example.com`; `*` is all"),
    ] = ()
    websocket_tls_port: Annotated[
        Port | None, Meta(description="MQTT over secure WebSocket, path `/mqtt` or `/`; needs `cert_file`")
    ] = None
    more: Annotated[
        tuple[str, ...],
        Meta(
            description="further listeners, such as `tls://0.0.0.0:8884?anonymous=false`; options `anonymous`, `proxy` "
            "(the PROXY protocol), `mount_point` (before its clients' topics), "
            "`cert_file`, `key_file`, `client_ca_file`, `crl_file`, `require_client_cert`"
        ),
    ] = ()
    cert_file: Annotated[FilePath | None, Meta(description="the server's certificate chain (PEM)")] = None
    key_file: Annotated[FilePath | None, Meta(description="the certificate's private key (PEM)")] = None
    client_ca_file: Annotated[
        FilePath | None, Meta(description="authorities whose client certificates are accepted (PEM)")
    ] = None
    require_client_cert: Annotated[
        bool, Meta(description="TLS clients must show a certificate; its CN is the user name")
    ] = False
    crl_file: Annotated[
        FilePath | None,
        Meta(description="revoked client certificates (PEM, one list for each authority); read again by SIGHUP"),
    ] = None
    tls_min_version: Annotated[Literal["1.2", "1.3"], Meta(description="the oldest version of TLS that is spoken")] = (
        "1.2"
    )
    tcp_keepalive: Annotated[
        Annotated[float, Meta(ge=0, extra=DURATION)],
        Meta(
            description="after so long without a byte TCP asks whether a peer is there; after as long again without an "
            "answer the peer is gone; `0` never"
        ),
    ] = 300.0
    backlog: Annotated[int, Meta(ge=1, description="connections that the system queues before they are accepted")] = (
        4096
    )


class Log(Section, frozen=True, kw_only=True):
    """Where and how kept messages are written."""

    data: Annotated[FilePath, Meta(description="the data directory; created when missing")] = "everlog-data"
    shards: Annotated[int, Meta(ge=1, le=254, description="number of logs; fixed once the directory exists")] = 1
    directories: Annotated[
        tuple[str, ...],
        Meta(description="directories, on disks of their own, in which new shards are made by turns; none: in `data`"),
    ] = ()
    durability: Annotated[
        Literal["memory", "flush", "fsync"],
        Meta(description="what an ack waits for: nothing, a write to the system, or a sync to the disk"),
    ] = "fsync"
    segment_bytes: Annotated[Bytes, Meta(description="at this size the next batch begins a new segment")] = 64 << 20
    segment_age: Annotated[
        Annotated[float, Meta(gt=0, extra=DURATION)] | None,
        Meta(description="or behind a message so much younger than its first; retention deletes whole segments"),
    ] = None
    preallocate_bytes: Annotated[
        int, Meta(ge=0, extra=BYTES, description="zeros ahead of small commits, for cheaper syncs; 0: none")
    ] = 256 << 10
    tail_bytes: Annotated[
        int,
        Meta(
            ge=0,
            extra=BYTES,
            description="recent batches kept in memory, for each shard; older ones are read from the disk",
        ),
    ] = 32 << 20
    reserve_bytes: Annotated[
        Annotated[int, Meta(ge=0, extra=BYTES)] | None,
        Meta(description="free space of the disk at which no more is kept; `none`: 5 % or 1 GiB, the smaller; 0: off"),
    ] = None
    retention_bytes: Annotated[
        Bytes | DiskShare | None,
        Meta(
            description="how much is kept of each shard, or by all of them as a part of the disk, such as `10%`; "
            "beyond it the oldest segments are deleted"
        ),
    ] = 0.1
    retention_age: Annotated[
        Annotated[float, Meta(gt=0, extra=DURATION)] | None,
        Meta(description="segments whose last message is older than this are deleted"),
    ] = 7 * 86_400.0


class Keep(Section, frozen=True, kw_only=True):
    """What is kept for replay, besides what durable sessions are subscribed to."""

    filters: Annotated[
        tuple[str, ...],
        Meta(
            description="topic filters whose messages are written to the log (`--keep`, repeatable); "
            "`[]` keeps only what durable sessions are subscribed to"
        ),
    ] = ("#",)
    min_qos: Annotated[
        int,
        Meta(ge=0, le=2, description="messages below this QoS are not kept for `filters`, and wait for no disk"),
    ] = 0
    never: Annotated[
        tuple[str, ...],
        Meta(
            description="topic filters that `filters` does not keep; by default the requests of the persistence "
            "service and the responses to clients"
        ),
    ] = ("everlog/p/#", "response/#")
    publishers: Annotated[
        bool,
        Meta(
            description="who has published a message is kept with it, by client id and user name; "
            "Spark shows the client id"
        ),
    ] = True


class Sessions(Section, frozen=True, kw_only=True):
    """What outlives a connection."""

    durable: Annotated[
        bool,
        Meta(
            description="clients may have sessions that outlive their connection; if not, CONNACK says an expiry of 0, "
            "nothing of a session is stored, and those that are stored end at the next start"
        ),
    ] = True


class Retention(Section, frozen=True, kw_only=True):
    """What is deleted, beyond `log.retention_age` and `log.retention_bytes`."""

    await_table: Annotated[
        bool,
        Meta(
            description="delete only what the table of `everlog spark compact` has, "
            "however old it is and however large the log gets"
        ),
    ] = False
    classes: Annotated[
        dict[str, str],
        Meta(
            description="topic filters, each with the age up to which matching messages are kept, `none` for ever; "
            "the first that matches a topic decides, `log.retention_age` where none does"
        ),
    ] = field(default_factory=dict)


class Security(Section, frozen=True, kw_only=True):
    """Who may connect, and what they may do."""

    allow_anonymous: Annotated[
        bool | None,
        Meta(
            description="clients without a proven user name may connect; by default only on loopback, "
            "without `password_file` and `authentication_methods`"
        ),
    ] = None
    password_file: Annotated[
        FilePath | None, Meta(description="users and their argon2id hashes (`everlog passwd`)")
    ] = None
    authentication_methods: Annotated[
        dict[str, str],
        Meta(
            description="methods of enhanced authentication (MQTT 5), each with the import path of its factory; "
            "`SCRAM-SHA-256` is built in, for users with an entry (`everlog passwd --scram`)"
        ),
    ] = field(default_factory=dict)
    acl_file: Annotated[FilePath | None, Meta(description="who may publish and subscribe to what; see acl.md")] = None


class Http(Section, frozen=True, kw_only=True):
    """Metrics and health over HTTP."""

    host: Annotated[str, Meta(description="address of the HTTP listener")] = "127.0.0.1"
    port: Annotated[
        Port | None,
        Meta(description=f"`0` takes {DEFAULT_HTTP_PORT} if it is free; another must be free; `none` opens none"),
    ] = 0
    client_ids: Annotated[
        bool, Meta(description="`/metrics` names the clients most behind, to everybody who can reach the port")
    ] = False


class Logging(Section, frozen=True, kw_only=True):
    """The broker's own messages, on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="the lowest level that is written")
    ] = "info"
    format: Annotated[
        Literal["text", "json"], Meta(description="one line for each event, for people or for programs")
    ] = "text"


class Sys(Section, frozen=True, kw_only=True):
    """The `$SYS/broker/...` topics."""

    interval: Annotated[
        Annotated[float, Meta(ge=0, extra=DURATION)],
        Meta(description="how often they are published; `0` never"),
    ] = 10.0


class Groups(Section, frozen=True, kw_only=True):
    """Durable shared groups (`$share/NAME/FILTER` that a durable session has joined)."""

    inflight_messages: Annotated[
        int,
        Meta(
            ge=1,
            description="messages not acknowledged, or passed over; with so many a group deals no more",
        ),
    ] = 10_000
    member_messages: Annotated[
        int,
        Meta(
            ge=1,
            le=65_535,
            description="messages that a member has not acknowledged; with so many, others get the next",
        ),
    ] = 256
    ack_timeout: Annotated[
        Annotated[float, Meta(ge=0, extra=DURATION)],
        Meta(description="a QoS 1 message not acknowledged for this long goes to another member; `0` never"),
    ] = 60.0
    ordered: Annotated[
        tuple[str, ...],
        Meta(description="names of groups whose messages of one topic go to one member at a time, in order"),
    ] = ()


class Persist(Section, frozen=True, kw_only=True):
    """Streams and key-value stores, served by a process of the broker's own from their first use on."""

    enabled: Annotated[bool, Meta(description="serve `everlog stream`, `everlog kv` and the Python client")] = True
    data: Annotated[
        FilePath | None, Meta(description="where they are kept; `none`: the directory `persist` in `log.data`")
    ] = None
    shards: Annotated[
        Annotated[int, Meta(ge=1, le=254)] | None,
        Meta(description="state shards; fixed once the directory exists, `none`: what it has, 1 when it is made"),
    ] = None
    message_bytes: Annotated[Bytes, Meta(description="the largest value of a message or key")] = 64 << 20
    bus: Annotated[
        str | None,
        Meta(
            description="where `everlog persist serve` listens: `nats://…` or `mqtt[s]://…`, several with commas; "
            "with it, or with `storage`, `everlog serve` does not serve them itself"
        ),
    ] = None
    storage: Annotated[
        str | None,
        Meta(
            description="what several `everlog persist serve` share: a directory, `s3://…` or `postgresql://…`; `data` "
            "is then their cache; `none`: one server keeps all in `data`"
        ),
    ] = None
    name: Annotated[
        str | None, Meta(description="what a server is called; `none`: a name that it finds and keeps in `data`")
    ] = None
    patience: Annotated[
        float,
        Meta(
            ge=0.5,
            extra=DURATION,
            description="after so long without a sign of life a server's shards are taken over; the same for all",
        ),
    ] = 5.0
    bucket: Annotated[
        str | None,
        Meta(
            description="where streams go too: a directory, or a URL such as `s3://bucket/prefix`, with credentials in "
            "the environment; `none`: nowhere"
        ),
    ] = None
    local_files: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="files of a shard's streams that stay on the local disk beside the bucket; `none`: all"),
    ] = None
    local_bytes: Annotated[
        Bytes | None, Meta(description="the same in bytes, as they are packed in the bucket; `none`: no limit")
    ] = None


class Cluster(Section, frozen=True, kw_only=True):
    """Several brokers with one history: PostgreSQL commits, a bucket remembers."""

    url: Annotated[
        str | None,
        Meta(
            description="the cluster's database, `postgresql://…`, made by `everlog cluster init`; `none`: one broker"
        ),
    ] = None
    schema: Annotated[str, Meta(min_length=1, description="the schema of its tables")] = "everlog"
    bucket: Annotated[
        str | None,
        Meta(
            description="where complete segments go: a directory that all share, or a URL such as `s3://bucket/prefix`"
        ),
    ] = None
    name: Annotated[
        str | None, Meta(description="what this broker is called; `none`: a name that it finds and keeps in `log.data`")
    ] = None
    link: Annotated[str, Meta(description="where other brokers connect, `HOST:PORT`; port `0` takes any free one")] = (
        "127.0.0.1:0"
    )
    advertise: Annotated[
        str | None, Meta(description="how others reach `link`, `HOST:PORT`; `none`: as it listens")
    ] = None
    client_address: Annotated[
        str | None,
        Meta(
            description="how clients reach this broker, `HOST:PORT`: MQTT 5 clients of a broker that is drained learn "
            "it (Server Reference); `none`: nobody is referred to it"
        ),
    ] = None
    refer_above: Annotated[
        Annotated[float, Meta(ge=1.1)] | None,
        Meta(
            description="a broker with so many times the mean number of connections refers new MQTT 5 clients to the "
            "one with the fewest that has a `client_address`; `none`: never"
        ),
    ] = None
    cert_file: Annotated[
        FilePath | None, Meta(description="certificate of this broker on links (PEM), for clients and servers")
    ] = None
    key_file: Annotated[FilePath | None, Meta(description="its private key (PEM)")] = None
    ca_file: Annotated[FilePath | None, Meta(description="who signs the certificates of all brokers (PEM)")] = None
    min_standbys: Annotated[
        int,
        Meta(
            ge=0,
            description="on so many standbys a commit must be before anything is acknowledged; PostgreSQL's "
            "`synchronous_standby_names` must ask for as many",
        ),
    ] = 0
    tail_bytes: Annotated[
        Annotated[int, Meta(ge=1 << 20, extra=BYTES)],
        Meta(description="of each shard in the database; when it is full, since the bucket is away, publishers wait"),
    ] = 64 << 20
    patience: Annotated[
        float,
        Meta(
            ge=0.5,
            extra=DURATION,
            description="after so long without a sign of life a broker is replaced; the same for all",
        ),
    ] = 5.0


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that can be set; the defaults are a broker for one machine."""

    listener: Listener = field(default_factory=Listener)
    log: Log = field(default_factory=Log)
    keep: Keep = field(default_factory=Keep)
    sessions: Sessions = field(default_factory=Sessions)
    retention: Retention = field(default_factory=Retention)
    limits: Limits = field(default_factory=Limits)
    groups: Groups = field(default_factory=Groups)
    persist: Persist = field(default_factory=Persist)
    cluster: Cluster = field(default_factory=Cluster)
    security: Security = field(default_factory=Security)
    http: Http = field(default_factory=Http)
    logging: Logging = field(default_factory=Logging)
    sys: Sys = field(default_factory=Sys)

    @property
    def on_loopback(self) -> bool:
        """Whether no other machine can reach an MQTT listener."""
        return is_loopback(self.listener.host)

    @property
    def allows_anonymous(self) -> bool:
        """Whether a client needs no proven user name."""
        if self.security.allow_anonymous is not None:
            return self.security.allow_anonymous
        return self.on_loopback and self.security.password_file is None and not self.security.authentication_methods


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on stays within this machine; an unknown name does not."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def limits_of(settings: Settings) -> Limits:
    """Return what the broker takes."""
    return settings.limits if settings.sessions.durable else replace(settings.limits, session_expiry_s=0)


def groups_of(settings: Settings) -> GroupOptions:
    """Return what the broker takes."""
    groups = settings.groups
    return GroupOptions(groups.inflight_messages, groups.member_messages, groups.ack_timeout, groups.ordered)


def classes_of(settings: Settings) -> TopicClasses | None:
    """Return the topic classes that the store takes, or None without any."""
    classes = settings.retention.classes
    if not classes:
        return None
    return TopicClasses([(text, parse_class_age(age)) for text, age in classes.items()])


def parse_class_age(text: str) -> int | None:
    """Parse how long a class is kept, in microseconds; None means for ever."""
    if text.strip().lower() == "none":
        return None
    seconds = parse_seconds(text)
    if seconds <= 0:
        raise UsageError(f"{text!r} is not an age", hint='write it like "7d", or "none" for ever')
    return round(seconds * 1_000_000)


def keep_rules_of(settings: Settings) -> KeepRules:
    """Return what the settings keep for replay."""
    return KeepRules(filters=settings.keep.filters, never=settings.keep.never, min_qos=settings.keep.min_qos)


def disk_bytes(data: str) -> int:
    """Return the size of the disk that a data directory is on, or will be; 0 if the system does not tell."""
    place = os.path.abspath(data)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return shutil.disk_usage(place).total


def retention_bytes_of(settings: Settings, disk: int) -> int | None:
    """Return how much is kept of each shard, on a disk of that size; a part of it is for all shards together."""
    log = settings.log
    if isinstance(log.retention_bytes, float):
        on_one_disk = -(-log.shards // max(1, len(log.directories)))
        return int(log.retention_bytes * disk) // on_one_disk or None  # no limit on a disk without a size
    return log.retention_bytes


def log_arguments(settings: Settings) -> dict[str, Any]:
    """Return the arguments of `LogSettings`."""
    log = settings.log
    return {
        "durability": log.durability,
        "segment_bytes": log.segment_bytes,
        "preallocate_bytes": log.preallocate_bytes,
        "tail_bytes": log.tail_bytes,
        "segment_us": None if log.segment_age is None else round(log.segment_age * 1_000_000),
        "retention_bytes": retention_bytes_of(settings, min(map(disk_bytes, log.directories or (log.data,)))),
        "retention_us": None if log.retention_age is None else round(log.retention_age * 1_000_000),
    }
