"""Listeners beside the usual ones, each as one text: `tls://0.0.0.0:8884?anonymous=false`."""

from dataclasses import replace
from typing import Any, cast, get_args
from urllib.parse import parse_qsl, urlsplit

from everlog.app.settings import Settings
from everlog.base import UsageError
from everlog.broker import Kind, Listener

_WORDS = {"true": True, "false": False}
_FILES = ("cert_file", "key_file", "client_ca_file", "crl_file")
_FLAGS = {"anonymous": "allow_anonymous", "proxy": "is_proxied", "require_client_cert": "require_client_cert"}
_HINT = "write it like tls://0.0.0.0:8884?anonymous=false&proxy=true"


def usual_listeners(settings: Settings) -> list[Listener]:
    """Return the listeners that the settings ask for by a port of their kind."""
    one = settings.listener
    kinds: tuple[tuple[Kind, int | None], ...] = (
        ("tcp", one.port),
        ("ws", one.websocket_port),
        ("tls", one.tls_port),
        ("wss", one.websocket_tls_port),
    )
    return [replace(_basis(settings, kind), port=port) for kind, port in kinds if port is not None]


def all_listeners(settings: Settings) -> list[Listener]:
    """Return every listener that the settings ask for."""
    return [*usual_listeners(settings), *(parse_listener(text, settings) for text in settings.listener.more)]


def parse_listener(text: str, settings: Settings) -> Listener:
    """Return the listener of a text; what it does not say is as for the usual ones."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{text!r} is no listener: {error}", hint=_HINT) from None
    if parts.scheme not in get_args(Kind) or host is None or port is None or parts.path not in ("", "/"):
        raise UsageError(f"{text!r} is no listener: it needs tcp, tls, ws or wss, a host and a port", hint=_HINT)
    changes: dict[str, Any] = {"host": host, "port": port}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "mount_point":
            changes[name] = _checked_mount(text, value)
        elif name in _FILES:
            changes[name] = value
        elif name in _FLAGS and value in _WORDS:
            changes[_FLAGS[name]] = _WORDS[value]
        else:
            known = ", ".join((*(f"{flag}=true|false" for flag in _FLAGS), *(f"{file}=FILE" for file in _FILES)))
            known += ", mount_point=TOPIC/"
            raise UsageError(f"{text!r} has {name}={value}, which is no option", hint=f"the options are {known}")
    return replace(_basis(settings, cast(Kind, parts.scheme)), **changes)


def _checked_mount(text: str, value: str) -> str:
    """Return a mount point, if it can stand before topics and filters."""
    levels = value.split("/")
    if len(levels) < 2 or levels[-1] or value[:1] in ("$", "/") or any(one in value for one in "+#\0"):
        why = f"{text!r} has the mount point {value!r}, behind which there are no topics"
        raise UsageError(why, hint="write it like a topic that ends in /: mount_point=customers/acme/")
    return value


def _basis(settings: Settings, kind: Kind) -> Listener:
    one = settings.listener
    plain = Listener(one.host, 0, kind, origins=one.websocket_origins, backlog=one.backlog)
    plain = replace(plain, tcp_keepalive_s=one.tcp_keepalive)
    if kind in ("tcp", "ws"):
        return plain
    secure = replace(plain, cert_file=one.cert_file, key_file=one.key_file, client_ca_file=one.client_ca_file)
    secure = replace(secure, require_client_cert=one.require_client_cert, crl_file=one.crl_file)
    return replace(secure, min_version=one.tls_min_version)
