"""`everlog pub`: publish what is on the command line, in a file or on standard input."""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer

from everlog.base import PeerError, UsageError
from everlog.cli import dial
from everlog.cli.client import Client
from everlog.mqtt import NO_PROPERTIES, Properties
from everlog.topics import check_topic_name

READ_BYTES = 64 << 10


def pub(
    topic: Annotated[str | None, typer.Option("-t", "--topic", metavar="TOPIC", help="Where to.")] = None,
    message: Annotated[str | None, typer.Option("-m", "--message", metavar="TEXT", help="The payload.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", metavar="FILE", help="The payload is a file's.")] = None,
    lines: Annotated[
        bool, typer.Option("-l", "--stdin-line", help="A message for each line of standard input.")
    ] = False,
    whole: Annotated[bool, typer.Option("-s", "--stdin-file", help="The payload is all of standard input.")] = False,
    null: Annotated[bool, typer.Option("-n", "--null-message", help="An empty payload.")] = False,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Retain the message.")] = False,
    repeat: Annotated[int, typer.Option("--repeat", min=1, metavar="COUNT", help="Publish it this often.")] = 1,
    repeat_delay: Annotated[
        float, typer.Option("--repeat-delay", min=0, metavar="SECONDS", help="Wait between the repetitions.")
    ] = 0.0,
    user_property: dial.UserProperties = None,
    qos: dial.Qos = 0,
    host: dial.Host = "localhost",
    port: dial.Port = None,
    url: dial.Url = None,
    client_id: dial.ClientId = None,
    username: dial.User = None,
    pw: dial.Password = None,
    protocol_version: dial.Version = "5",
    durable: dial.Durable = False,
    expiry: dial.Expiry = None,
    keepalive: dial.KeepAlive = 60,
    cafile: dial.CaFile = None,
    os_certs: dial.CaSystem = False,
    cert: dial.Cert = None,
    key: dial.CertKey = None,
    insecure: dial.Insecure = False,
    will_topic: dial.WillTopic = None,
    will_payload: dial.WillPayload = "",
    will_qos: dial.WillQos = 0,
    will_retain: dial.WillRetain = False,
) -> int:
    """Publish messages; the options are those of mosquitto_pub."""
    call = dial.plan_call(
        host=host,
        port=port,
        url=url,
        client_id=client_id,
        user=username,
        password=pw,
        version=protocol_version,
        durable=durable,
        expiry=expiry,
        keep_alive=keepalive,
        cafile=cafile,
        system_cas=os_certs,
        cert=cert,
        cert_key=key,
        insecure=insecure,
        will=dial.will_of(will_topic, will_payload, will_qos, will_retain),
    )
    if (message, file).count(None) + [lines, whole, null].count(False) != 4:
        raise UsageError("not exactly one payload", hint="give one of -m, -f, -l, -s, -n")
    source = _lines() if lines else _again(_payload(message, file, whole), repeat, repeat_delay)
    properties = Properties(user_properties=dial.pairs(user_property)) if user_property else NO_PROPERTIES
    return asyncio.run(publish(call, _topic(topic or call.topic), source, qos, retain, properties))


async def publish(
    call: dial.Call, topic: str, payloads: AsyncIterator[bytes], qos: int, retain: bool, properties: Properties
) -> int:
    """Send every payload and wait for the acks; 1 when the broker refused one."""
    client = Client(call.connect)
    try:
        await client.open(call.host, call.port, call.tls)
        async for payload in payloads:
            await client.publish(topic, payload, qos, retain, properties)
        await client.settle()
    finally:
        await client.close()
    for packet_id, reason in client.refused:
        print(f"everlog: message {packet_id} was refused: {reason.name.lower().replace('_', ' ')}", file=sys.stderr)
    return 1 if client.refused else 0


def _topic(topic: str | None) -> str:
    if topic is None:
        raise UsageError("no topic", hint="give one with -t")
    try:
        check_topic_name(topic)
    except PeerError as error:
        raise UsageError(f"-t {topic!r}: {error.message}", hint="a name without + and #") from None
    return topic


def _payload(message: str | None, file: Path | None, whole: bool) -> bytes:
    if message is not None:
        return os.fsencode(message)  # as it was typed, valid UTF-8 or not
    if whole:
        return sys.stdin.buffer.read()
    try:
        return b"" if file is None else file.read_bytes()
    except OSError as error:
        raise UsageError(f"-f {file} can't be read: {error.strerror}") from error


async def _again(payload: bytes, count: int, delay_s: float) -> AsyncIterator[bytes]:
    for number in range(count):
        if number and delay_s:
            await asyncio.sleep(delay_s)
        yield payload


async def _lines() -> AsyncIterator[bytes]:
    """Lines of standard input as they come, without their ends; the last need not have one."""
    rest = b""
    while chunk := await _read(sys.stdin.fileno()):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


async def _read(file: int) -> bytes:
    """Some bytes of a file; a pipe or terminal is waited for without blocking the connection."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(file, ready.set)
        except PermissionError:  # /dev/null and its like are always ready
            return os.read(file, READ_BYTES)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(file)
    return os.read(file, READ_BYTES)
