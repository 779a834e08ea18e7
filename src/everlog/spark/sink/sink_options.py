"""The options of `df.write.format("everlog")` and `writeStream.format("everlog")`; a misspelt one is refused."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from everlog.base import UsageError
from everlog.spark.source_options import known_options, local_path, parse_filter_list

OPTIONS = {
    "broker": "the broker to publish to: host:port, mqtt://user:password@host:port or mqtts://...",
    "table": "the Delta table to append to: a directory or s3://bucket/prefix",
    "streams": "or streams to append to: a name, or a filter for the names in the column stream",
    "kv": "or key-value stores to put to: a name, or a filter for the names in the column kv",
    "bus": "where the servers of streams are: mqtt://host:1883 or nats://host:4222, several with commas",
    "path": "or the directory of streams that no server has open now",
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
class StateTarget:
    """Streams or key-value stores, behind a bus or in a directory."""

    kind: str  # streams or kv
    filters: tuple[str, ...]
    bus: str | None = field(default=None, repr=False)  # it may have a password
    directory: str | None = None

    @property
    def name(self) -> str | None:
        """The one name that is meant, if it is one."""
        return self.filters[0] if len(self.filters) == 1 and not set(self.filters[0]) & set("+#") else None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The destination of rows (a broker, a table, or streams) and the application that writes them."""

    broker: Address | None
    table: str | None
    state: StateTarget | None
    staging: str
    app: str | None = None
    batch: int | None = None
    qos: int = 2
    timeout_s: float = TIMEOUT_S


def read_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a sink."""
    options = known_options(given, OPTIONS)
    if not options:
        raise UsageError(
            "no destination: Spark does not say where the table is",
            hint="make it without columns, of one that is there: CREATE TABLE t USING everlog OPTIONS (path '...')",
        )
    if "path" in options and not set(options) & {"broker", "table", "streams", "kv"}:
        options["table"] = _table_at(options.pop("path"))
    if sum(name in options for name in ("broker", "table", "streams", "kv")) != 1:
        raise UsageError("no destination, or two", hint='give one of the options "broker", "table", "streams" and "kv"')
    if "batch" in options and "app" not in options:
        raise UsageError("a batch has a number among those of an application", hint='give the option "app" too')
    qos = options.get("qos", "2")
    if qos not in ("0", "1", "2"):
        raise UsageError(f"qos is 0, 1 or 2, not {qos!r}")
    return SinkOptions(
        broker=_address(options) if "broker" in options else None,
        table=options.get("table"),
        state=_state(options),
        staging="" if "table" in options else _staging(options),
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


def _table_at(path: str) -> str:
    """Return a path as a table, unless it is what something else has its data in."""
    if "://" not in path or path.startswith("file:"):
        path = os.path.abspath(local_path(path))
        if any(os.path.exists(f"{path}/{name}") for name in ("store", "persist.json")):
            raise UsageError(
                f"{path} is no table", hint='to write to streams that are there, give "streams" or "kv" too'
            )
    return path


def _state(options: Mapping[str, str]) -> StateTarget | None:
    kind = "streams" if "streams" in options else "kv"
    if kind not in options:
        for name in ("bus", "path"):
            if name in options:
                raise UsageError(
                    f"the option {name} is for streams", hint='give "streams" or "kv" too, or leave it out'
                )
        return None
    if ("bus" in options) == ("path" in options):
        raise UsageError(
            "which streams are these?",
            hint='give the option "bus" (mqtt://host:1883), or save to a directory that no server has open',
        )
    directory = os.path.abspath(local_path(options["path"])) if "path" in options else None
    return StateTarget(kind, parse_filter_list(kind, options[kind]), options.get("bus"), directory)


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
