"""`everlog spark`: jobs over the whole history, on this machine or a cluster."""

from typing import Annotated

import typer

from everlog.base import UsageError
from everlog.cli import dial
from everlog.cli import sparkoptions as options

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.command()
def structure(
    data: options.Data,
    topic: options.Topic = None,
    from_: options.From = None,
    to: options.To = None,
    html: options.Html = None,
    json: options.Json = None,
    master: options.Master = None,
    conf: options.Conf = None,
    verbose: options.Verbose = False,
) -> int:
    """Learn which shapes the topics have and which topics fit none; writes DATA/structure.json for compaction."""
    from everlog.cli import sparkjobs

    return sparkjobs.structure(sparkjobs.Source(data, topic, from_, to, master, conf, verbose), html, json)


@app.command()
def stats(
    data: options.Data,
    by: Annotated[str, typer.Option("--by", metavar="WHAT", help="topic, shape, or a number of levels.")] = "topic",
    top: options.Top = 20,
    topic: options.Topic = None,
    from_: options.From = None,
    to: options.To = None,
    html: options.Html = None,
    json: options.Json = None,
    master: options.Master = None,
    conf: options.Conf = None,
    verbose: options.Verbose = False,
) -> int:
    """Rates, sizes, gaps and silence; who talks most, and when."""
    from everlog.cli import sparkjobs

    if by not in ("topic", "shape") and not (by.isdigit() and int(by)):
        raise UsageError(f"--by {by!r} is nothing to count by", hint="give topic, shape, or a number of levels")
    return sparkjobs.stats(sparkjobs.Source(data, topic, from_, to, master, conf, verbose), by, top, html, json)


@app.command()
def audit(
    data: options.MaybeData = None,
    published: Annotated[
        str | None, typer.Option("--published", metavar="PATH", help="What was published: JSON lines or Parquet.")
    ] = None,
    logged: Annotated[
        str | None, typer.Option("--logged", metavar="PATH", help="What the log has, if not DATA itself.")
    ] = None,
    delivered: Annotated[
        str | None, typer.Option("--delivered", metavar="PATH", help="What was delivered to subscribers.")
    ] = None,
    subscriptions: Annotated[
        str | None, typer.Option("--subscriptions", metavar="PATH", help="Who subscribed to what.")
    ] = None,
    identity: Annotated[
        str, typer.Option("--identity", metavar="HOW", help="How messages in DATA say who sent them: json, properties.")
    ] = "json",
    top: options.Top = 100,
    topic: options.Topic = None,
    from_: options.From = None,
    to: options.To = None,
    html: options.Html = None,
    json: options.Json = None,
    master: options.Master = None,
    conf: options.Conf = None,
    verbose: options.Verbose = False,
) -> int:
    """Check a store alone, or compare what was published, logged and delivered; exit code 1 if anything is wrong."""
    from everlog.cli import sparkaudit, sparkjobs

    source = sparkjobs.Source(data, topic, from_, to, master, conf, verbose)
    histories = sparkaudit.Histories(published, logged, delivered, subscriptions, identity)
    return sparkaudit.audit(source, histories, top, html, json)


@app.command()
def replay(
    data: options.Data,
    topic: options.Topic = None,
    from_: options.From = None,
    to: options.To = None,
    speed: Annotated[str, typer.Option("--speed", metavar="SPEED", help="max, original, or a factor: 10x.")] = "max",
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="In front of every topic: replay/")] = "",
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2, metavar="QOS", help="Of all of them.")] = 1,
    retain: Annotated[bool, typer.Option("--retain", help="Retain what was retained.")] = False,
    mark: Annotated[bool, typer.Option("--mark", help="Say position and time in user properties.")] = False,
    host: dial.Host = "localhost",
    port: dial.Port = None,
    client_id: dial.ClientId = None,
    username: dial.User = None,
    pw: dial.Password = None,
    protocol_version: dial.Version = "5",
    cafile: dial.CaFile = None,
    os_certs: dial.CaSystem = False,
    cert: dial.Cert = None,
    key: dial.CertKey = None,
    insecure: dial.Insecure = False,
    master: options.Master = None,
    conf: options.Conf = None,
    verbose: options.Verbose = False,
) -> int:
    """Publish a selection of history again, in its order."""
    from everlog.cli import sparkjobs
    from everlog.cli.sparkreplay import Manner, check_prefix, speed_of

    call = dial.plan_call(
        host=host,
        port=port,
        url=None,
        client_id=client_id,
        user=username,
        password=pw,
        version=protocol_version,
        durable=False,
        expiry=None,
        keep_alive=60,
        cafile=cafile,
        system_cas=os_certs,
        cert=cert,
        cert_key=key,
        insecure=insecure,
        will=None,
    )
    manner = Manner(speed_of(speed), check_prefix(prefix), qos, retain, mark)
    return sparkjobs.replay(sparkjobs.Source(data, topic, from_, to, master, conf, verbose), call, manner)


@app.command()
def shell(
    data: options.MaybeData = None,
    topic: options.Topic = None,
    from_: options.From = None,
    to: options.To = None,
    master: options.Master = None,
    conf: options.Conf = None,
    verbose: options.Verbose = False,
) -> int:
    """Python with `spark`, the views `messages` and `topics`, and `sql`; or run a script from standard input."""
    from everlog.cli import sparkjobs

    return sparkjobs.shell(sparkjobs.Source(data, topic, from_, to, master, conf, verbose))


@app.command()
def compact(
    data: options.Data,
    table: options.Table = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is sealed later.")] = False,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="How often --follow looks.")] = "10s",
    codec: Annotated[str, typer.Option("--codec", metavar="CODEC", help="zstd or snappy.")] = "zstd",
    retain: Annotated[
        str | None, typer.Option("--retain", metavar="TIME", help="Drop days that ended longer ago: 30d.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Put small files together.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Take what is committed of open segments too.")] = False,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out what is damaged, and say so, instead of stopping.")
    ] = False,
    option: options.TableOption = None,
    master: options.Master = None,
    conf: options.Conf = None,
    verbose: options.Verbose = False,
) -> int:
    """Turn sealed segments into a Delta table, each row once; a broker may run meanwhile."""
    from everlog.cli import sparkcompact, sparkjobs

    wish = sparkcompact.Wish(table, option, codec, everything, merge, retain, skip_damaged, follow, every)
    return sparkcompact.compact(sparkjobs.Source(data, master=master, conf=conf, verbose=verbose), wish)


@app.command()
def vacuum(
    data: options.MaybeData = None,
    table: options.Table = None,
    hours: Annotated[
        int, typer.Option("--hours", min=0, metavar="N", help="Spare what was in use in the last N hours.")
    ] = 168,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Allow less than 24 hours: nothing else uses it.")] = False,
    option: options.TableOption = None,
) -> int:
    """Remove files of the table that nothing refers to: of failed attempts, and of what was merged or dropped."""
    from everlog.cli import sparkcompact

    return sparkcompact.vacuum(data, table, option, hours, dry_run, force)
