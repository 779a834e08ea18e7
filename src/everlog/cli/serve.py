"""`everlog serve`: turns flags into settings, and settings into a running broker."""

import importlib
from typing import Annotated, Any

import typer

from everlog.app import load


def serve(
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings; else everlog.toml here, if any.")
    ] = None,
    port: Annotated[str | None, typer.Option("--port", "-p", metavar="PORT", help="Plain MQTT; 0 takes any.")] = None,
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = None,
    data: Annotated[str | None, typer.Option("--data", "-d", metavar="DIR", help="The data directory.")] = None,
    durability: Annotated[str | None, typer.Option(metavar="memory|flush|fsync", help="What an ack waits for.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="FILTER", help="Keep these topics for replay; repeatable.")
    ] = None,
    keep_min_qos: Annotated[str | None, typer.Option(metavar="QOS", help="Keep no message below this QoS.")] = None,
    shards: Annotated[str | None, typer.Option(metavar="N", help="Number of logs, when DIR is new.")] = None,
    retention_age: Annotated[str | None, typer.Option(metavar="TIME", help="Delete what is older: 7d.")] = None,
    retention_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Delete the oldest beyond this: 10GiB.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="URL", help="Be one of several brokers: postgresql://… (everlog cluster).")
    ] = None,
    bucket: Annotated[
        str | None, typer.Option(metavar="PLACE", help="With --cluster: s3://bucket/prefix, or a shared directory.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --cluster: what this broker is called.")
    ] = None,
    link: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="With --cluster: where other brokers connect.")
    ] = None,
    tls_port: Annotated[str | None, typer.Option(metavar="PORT", help="MQTT over TLS.")] = None,
    websocket_port: Annotated[str | None, typer.Option(metavar="PORT", help="MQTT over WebSocket.")] = None,
    websocket_tls_port: Annotated[str | None, typer.Option(metavar="PORT", help="MQTT over secure WebSocket.")] = None,
    cert_file: Annotated[str | None, typer.Option(metavar="FILE", help="The server's certificate chain.")] = None,
    key_file: Annotated[str | None, typer.Option(metavar="FILE", help="The certificate's key.")] = None,
    client_ca_file: Annotated[str | None, typer.Option(metavar="FILE", help="Who signs client certificates.")] = None,
    require_client_cert: Annotated[
        bool | None, typer.Option("--require-client-cert", help="TLS clients must have a certificate.")
    ] = None,
    allow_anonymous: Annotated[
        bool | None, typer.Option("--allow-anonymous/--no-anonymous", help="Clients without a user name.")
    ] = None,
    password_file: Annotated[str | None, typer.Option(metavar="FILE", help="Users (everlog passwd).")] = None,
    acl_file: Annotated[str | None, typer.Option(metavar="FILE", help="Who may do what.")] = None,
    http_port: Annotated[str | None, typer.Option(metavar="PORT", help="Metrics and health; none for none.")] = None,
    http_host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address of the HTTP port.")] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="text or json.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting: limits.connections=500; repeatable."),
    ] = None,
) -> int:
    """Start the broker. A flag is stronger than EVERLOG_… variables, and they than the file."""
    named = {
        "--port": ("listener.port", port),
        "--host": ("listener.host", host),
        "--tls-port": ("listener.tls_port", tls_port),
        "--websocket-port": ("listener.websocket_port", websocket_port),
        "--websocket-tls-port": ("listener.websocket_tls_port", websocket_tls_port),
        "--cert-file": ("listener.cert_file", cert_file),
        "--key-file": ("listener.key_file", key_file),
        "--client-ca-file": ("listener.client_ca_file", client_ca_file),
        "--require-client-cert": ("listener.require_client_cert", require_client_cert),
        "--data": ("log.data", data),
        "--durability": ("log.durability", durability),
        "--shards": ("log.shards", shards),
        "--retention-age": ("log.retention_age", retention_age),
        "--retention-bytes": ("log.retention_bytes", retention_bytes),
        "--keep": ("keep.filters", keep),
        "--keep-min-qos": ("keep.min_qos", keep_min_qos),
        "--cluster": ("cluster.url", cluster),
        "--bucket": ("cluster.bucket", bucket),
        "--name": ("cluster.name", name),
        "--link": ("cluster.link", link),
        "--allow-anonymous": ("security.allow_anonymous", allow_anonymous),
        "--password-file": ("security.password_file", password_file),
        "--acl-file": ("security.acl_file", acl_file),
        "--http-port": ("http.port", http_port),
        "--http-host": ("http.host", http_host),
        "--log-level": ("logging.level", log_level),
        "--log-format": ("logging.format", log_format),
    }
    flags = [(flag, path, value) for flag, (path, value) in named.items()]
    loaded = load(config, flags=[*flags, *_others(settings or [])])
    module = "everlog.app.serve" if loaded.settings.cluster.url is None else "everlog.app.cluster_serve"
    run: Any = importlib.import_module(module).run  # heavy, so only once the settings are known to be good
    return int(run(loaded.settings, loaded.config))


def _others(pairs: list[str]) -> list[tuple[str, str, Any]]:
    """Parse `--set key=value` as flags."""
    flags = []
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--set")
        flags.append((f"--set {path.strip()}", path.strip(), value.strip()))
    return flags
