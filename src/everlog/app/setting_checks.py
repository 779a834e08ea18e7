"""Checks across keys: settings that contradict each other, and a broker that would be open to the world."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

from everlog.app.listener_urls import parse_listener
from everlog.app.settings import Settings, is_loopback, parse_class_age
from everlog.base import PeerError, UsageError
from everlog.store import MOST_CLASSES
from everlog.topics import parse_filter

SourceOf = Callable[[str], str]

_FILES = (
    "listener.cert_file",
    "listener.key_file",
    "listener.client_ca_file",
    "listener.crl_file",
    "cluster.cert_file",
    "cluster.key_file",
    "cluster.ca_file",
    "security.acl_file",
)


def contradictions(settings: Settings, source_of: SourceOf) -> list[UsageError]:
    """Return every reason why these settings can't be used together."""
    return [
        *_listeners(settings, source_of),
        *_files(settings, source_of),
        *_directories(settings, source_of),
        *_filters(settings, source_of),
        *_classes(settings, source_of),
        *_cluster(settings, source_of),
        *_open_to_the_world(settings, source_of),
    ]


def _listeners(settings: Settings, source_of: SourceOf) -> Iterator[UsageError]:
    listener = settings.listener
    ports = {
        name: getattr(listener, name)
        for name in ("port", "tls_port", "websocket_port", "websocket_tls_port")
        if getattr(listener, name) is not None
    }
    further = []
    for text in listener.more:
        try:
            further.append(parse_listener(text, settings))
        except UsageError as error:
            yield UsageError(f"{source_of('listener.more')}: {error.message}", hint=error.hint)
    for one in further:
        if one.kind in ("tls", "wss") and (one.cert_file is None or one.key_file is None):
            yield UsageError(
                f"{source_of('listener.more')}: {one.kind} on port {one.port} needs a certificate and its key",
                hint="set listener.cert_file and listener.key_file, or add ?cert_file=FILE&key_file=FILE",
            )
    if not ports and not listener.more:
        yield UsageError(f"{source_of('listener.port')}: nothing to listen on", hint="set listener.port = 1883")
    taken: dict[int, str] = {}
    for name, port in ports.items():
        if port and port in taken:
            yield UsageError(
                f"{source_of(f'listener.{name}')}: port {port} is also that of {taken[port]}", hint="choose another"
            )
        taken[port] = name
    with_tls = [name for name in ports if "tls" in name]
    secure = bool(with_tls) or any(one.kind in ("tls", "wss") for one in further)
    for name in with_tls:
        if listener.cert_file is None or listener.key_file is None:
            yield UsageError(
                f"{source_of(f'listener.{name}')}: TLS needs a certificate and its key",
                hint="set listener.cert_file and listener.key_file",
            )
    for name in ("cert_file", "key_file", "client_ca_file"):
        if getattr(listener, name) is not None and not secure:
            yield UsageError(
                f"{source_of(f'listener.{name}')}: no listener uses TLS", hint="set listener.tls_port = 8883"
            )
    if listener.crl_file is not None and listener.client_ca_file is None:
        yield UsageError(
            f"{source_of('listener.crl_file')}: no authority whose certificates could be revoked",
            hint="set listener.client_ca_file",
        )
    if listener.require_client_cert and listener.client_ca_file is None:
        yield UsageError(
            f"{source_of('listener.require_client_cert')}: no authority to check client certificates against",
            hint="set listener.client_ca_file",
        )


def _files(settings: Settings, source_of: SourceOf) -> Iterator[UsageError]:
    for path, hint in (
        *((path, "give the path of a readable file") for path in _FILES),
        ("security.password_file", "create it: everlog passwd FILE USER"),
    ):
        section, _, name = path.partition(".")
        file = getattr(getattr(settings, section), name)
        if file is not None and not (os.path.isfile(file) and os.access(file, os.R_OK)):
            yield UsageError(f"{source_of(path)}: {file} can't be read", hint=hint)


def _directories(settings: Settings, source_of: SourceOf) -> Iterator[UsageError]:
    log = settings.log
    if len(log.directories) > log.shards:
        yield UsageError(
            f"{source_of('log.directories')}: {len(log.directories)} directories for {log.shards} shards",
            hint=f"set log.shards = {len(log.directories)} before the data directory is made, or name fewer",
        )


def _filters(settings: Settings, source_of: SourceOf) -> Iterator[UsageError]:
    for name, texts in (("keep.filters", settings.keep.filters), ("keep.never", settings.keep.never)):
        for text in texts:
            try:
                parse_filter(text, allow_shared=False)
            except PeerError as error:
                yield UsageError(
                    f"{source_of(name)}: {text!r} is not a topic filter: {error.message}",
                    hint="write it like sensors/#",
                )


def _cluster(settings: Settings, source_of: SourceOf) -> Iterator[UsageError]:
    cluster = settings.cluster
    if cluster.url is None:
        if cluster.bucket is not None:
            yield UsageError(f"{source_of('cluster.bucket')}: only a cluster has one", hint="set cluster.url")
        return
    if not cluster.url.startswith(("postgresql://", "postgres://")):
        yield UsageError(
            f"{source_of('cluster.url')}: it is not the address of PostgreSQL",
            hint="write it like postgresql://HOST/NAME",
        )
    if not cluster.schema.isidentifier():
        yield UsageError(
            f"{source_of('cluster.schema')}: {cluster.schema!r} can't be a schema", hint="use letters, digits and _"
        )
    if cluster.bucket is None:
        yield UsageError(
            f"{source_of('cluster.url')}: a cluster needs a bucket",
            hint="set cluster.bucket (--bucket): s3://BUCKET/PREFIX, or a directory that all brokers share",
        )
    for name in ("link", "advertise", "client_address"):
        text = getattr(cluster, name)
        if text is not None and not _is_address(text):
            yield UsageError(
                f"{source_of(f'cluster.{name}')}: {text!r} is no HOST:PORT", hint="write it like 10.0.0.1:1884"
            )
    if cluster.advertise is None and cluster.link.startswith(("0.0.0.0:", "[::]:")):
        yield UsageError(
            f"{source_of('cluster.link')}: other brokers can't connect to {cluster.link}",
            hint="set cluster.advertise to the address of this machine",
        )
    if settings.retention.classes:
        yield UsageError(
            f"{source_of('retention.classes')}: a cluster has one age for all topics: objects are not written again",
            hint="set log.retention_age to the longest, or give topics with a shorter life a cluster of their own",
        )
    if settings.retention.await_table:
        yield UsageError(
            f"{source_of('retention.await_table')}: a cluster does not know how far a table goes",
            hint="set log.retention_age to much longer than `everlog spark compact` is ever behind",
        )
    files = [name for name in ("cert_file", "key_file", "ca_file") if getattr(cluster, name) is not None]
    if files and len(files) < 3:
        yield UsageError(
            f"{source_of(f'cluster.{files[0]}')}: TLS between brokers needs all of cert_file, key_file and ca_file",
            hint="both sides show a certificate that ca_file has signed",
        )


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon) and port.isdecimal() and int(port) <= 65_535


def _classes(settings: Settings, source_of: SourceOf) -> Iterator[UsageError]:
    source, classes = source_of("retention.classes"), settings.retention.classes
    if len(classes) > MOST_CLASSES:
        yield UsageError(f"{source}: {len(classes)} classes are too many", hint=f"there may be {MOST_CLASSES}")
    before: list[str] = []
    for text, age in classes.items():
        try:
            parse_filter(text, allow_shared=False)
            parse_class_age(age)
        except PeerError as error:
            yield UsageError(
                f"{source}: {text!r} is not a topic filter: {error.message}", hint="write it like sensors/#"
            )
        except UsageError as error:
            yield UsageError(f"{source}: {text!r}: {error.message}", hint=error.hint)
        wider = next((one for one in before if covers(one, text)), None)
        if wider is not None:
            yield UsageError(f"{source}: {text!r} never counts, {wider!r} decides first", hint="put the narrower first")
        before.append(text)


def covers(wide: str, narrow: str) -> bool:
    """Return whether every topic that matches `narrow` matches `wide`."""
    wide_levels, narrow_levels = wide.split("/"), narrow.split("/")
    if narrow.startswith("$") and wide_levels[0] in ("#", "+"):  # [MQTT-4.7.2-1]
        return False
    for place, level in enumerate(wide_levels):
        if level == "#":
            return True
        if place >= len(narrow_levels) or narrow_levels[place] == "#" or level not in ("+", narrow_levels[place]):
            return False
    return len(wide_levels) == len(narrow_levels)


def _open_to_the_world(settings: Settings, source_of: SourceOf) -> Iterator[UsageError]:
    """Refuse a listener that other machines can reach without a password, unless the settings allow it explicitly."""
    listener, security = settings.listener, settings.security
    if security.allow_anonymous is not None:
        return
    if settings.on_loopback:
        yield from _further_open(settings, source_of)
        return
    if security.password_file is not None or security.authentication_methods:
        return
    plain = listener.port is not None or listener.websocket_port is not None
    if plain or not listener.require_client_cert:
        yield UsageError(
            f"{source_of('listener.host')}: other machines could connect to {listener.host} without a password",
            hint="set security.password_file (everlog passwd FILE USER), or security.allow_anonymous = true",
        )


def _further_open(settings: Settings, source_of: SourceOf) -> Iterator[UsageError]:
    """Refuse further listeners that other machines can reach, if those on the usual address need no password."""
    for text in settings.listener.more if settings.allows_anonymous else ():
        with suppress(UsageError):  # told elsewhere
            one = parse_listener(text, settings)
            if one.allow_anonymous is None and not one.require_client_cert and not is_loopback(one.host):
                yield UsageError(
                    f"{source_of('listener.more')}: other machines could connect to {one.host} without a password",
                    hint="add ?anonymous=true to allow that, or ?anonymous=false and set security.password_file",
                )
