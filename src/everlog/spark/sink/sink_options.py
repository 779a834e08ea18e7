"""The options of `df.write.format("everlog")` and `writeStream.format("everlog")`; a misspelt one is refused."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from everlog.base import UsageError
from everlog.spark.source_options import known_options, local_path

OPTIONS = {
    "broker": "the broker to publish to: host:port, mqtt://user:password@host:port or mqtts://...",
    "table": "the Delta table to append to: a directory or s3://bucket/prefix",
    "app": "who writes: a name that stays the same when the program is started again; a stream's own id by default",
    "batch": "of a batch write, the number of this one; it is written once, though it is saved twice",
    "staging": "a directory that all workers see, for rows on their way; in the checkpoint of a stream by default",
    "qos": "the QoS of rows without a column qos: 2 by default, which makes each row appear once",
    "user": "the user name for the broker",
    "password": "its password",
    "caFile": "TLS: who signed the broker's certificate; the system's authorities by default",
    "timeout": "how many seconds a broker that can't be reached is waited for; 60 by default",
    "checkpointLocation": "where the stream keeps its progress",
}
MISSING = {
    "stream": "streams of the persistence service can't be written to yet",
    "kv": "key-value stores of the persistence service can't be written to yet",
}
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Address:
    """A broker and how to reach it."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The destination of rows, a broker or a table, and the application that writes them."""

    broker: Address | None
    table: str | None
    staging: str
    app: str | None = None
    batch: int | None = None
    qos: int = 2
    timeout_s: float = TIMEOUT_S


def read_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a sink."""
    for name in given:
        if name.lower() in MISSING:
            raise UsageError(MISSING[name.lower()], hint='write to topics, with the option "broker"')
    options = known_options(given, OPTIONS)
    if ("broker" in options) == ("table" in options):
        raise UsageError("no destination, or two", hint='give either the option "broker" or the option "table"')
    if "batch" in options and "app" not in options:
        raise UsageError("a batch has a number among those of an application", hint='give the option "app" too')
    qos = options.get("qos", "2")
    if qos not in ("0", "1", "2"):
        raise UsageError(f"qos is 0, 1 or 2, not {qos!r}")
    return SinkOptions(
        broker=_address(options) if "broker" in options else None,
        table=options.get("table"),
        staging=_staging(options) if "broker" in options else "",
        app=options.get("app"),
        batch=_number(options["batch"]) if "batch" in options else None,
        qos=int(qos),
        timeout_s=_seconds(options.get("timeout", str(TIMEOUT_S))),
    )


def _address(options: Mapping[str, str]) -> Address:
    text = options["broker"]
    hint = "write it like 127.0.0.1:1883 or mqtts://host:8883"
    try:
        parts = urlsplit(text if "://" in text else f"mqtt://{text}")
        port = parts.port
    except ValueError as error:
        raise UsageError(f"the option broker: {error}", hint=hint) from None
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path.strip("/"):
        raise UsageError("the option broker is not the address of a broker", hint=hint)
    tls = parts.scheme == "mqtts"
    user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    return Address(
        parts.hostname,
        port or (8883 if tls else 1883),
        tls,
        options.get("user", user),
        options.get("password", password),
        options.get("caFile"),
    )


def _staging(options: Mapping[str, str]) -> str:
    if "staging" in options:
        return os.path.abspath(local_path(options["staging"]))
    checkpoint = options.get("checkpointLocation")
    if checkpoint is None:
        return os.path.join(tempfile.gettempdir(), f"everlog-sink-{os.getuid()}")
    if "://" in checkpoint and not checkpoint.startswith("file:"):
        raise UsageError(
            f"the checkpoint at {checkpoint} is not a directory, and rows on their way need one",
            hint='name a directory that all workers see with the option "staging"',
        )
    return os.path.join(os.path.abspath(local_path(checkpoint)), "everlog-sink")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"the option batch has {text!r}", hint="write a number, as foreachBatch gives it")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text))
    except ValueError:
        raise UsageError(f"the option timeout has {text!r}", hint="write seconds, as in 60") from None
