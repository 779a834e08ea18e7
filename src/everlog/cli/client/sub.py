"""`everlog sub`: subscribe and print what arrives."""

import asyncio
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Annotated, BinaryIO

import typer

from everlog.base import UsageError
from everlog.cli.begin_words import exact_begin
from everlog.cli.client.async_client import AsyncClient
from everlog.cli.client.connect_options import (
    Qos,
    Target,
    UserProperties,
    parse_filter_option,
    parse_pairs,
    parse_target,
)
from everlog.cli.client.message_format import Formatter, formatter
from everlog.cli.client.packet_properties import merged
from everlog.cli.client.reconnect import keep_connected
from everlog.cli.client.replay_extent import POSITION, TIME, entry_of
from everlog.cli.option_groups import with_options
from everlog.cli.visible import visible_line
from everlog.mqtt import NO_PROPERTIES, Message, Properties, Subscription
from everlog.store import parse_begin
from everlog.topics import Filter, matches

TIMED_OUT = 27  # mosquitto_sub's exit code for -W


@dataclass(frozen=True, slots=True)
class Request:
    """The subscriptions to make, and when to stop."""

    filters: tuple[str, ...]
    drop: tuple[str, ...]
    qos: int
    retain_as_published: bool
    count: int | None
    timeout_s: float | None
    exit_when_subscribed: bool
    reconnect: bool
    user_properties: tuple[tuple[str, str], ...]


@with_options("target", parse_target)
def sub(
    topics: Annotated[list[str] | None, typer.Option("-t", "--topic", metavar="FILTER", help="Repeatable.")] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("-T", "--filter-out", metavar="FILTER", help="Print none of these; repeatable.")
    ] = None,
    unsubscribe: Annotated[
        list[str] | None, typer.Option("-U", "--unsubscribe", metavar="FILTER", help="Unsubscribe first; repeatable.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("-C", metavar="COUNT", min=1, help="Stop when this many were printed.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("-W", metavar="SECONDS", min=0, help="Stop after this time, with exit code 27.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the topic in front of the payload.")] = False,
    template: Annotated[
        str | None, typer.Option("-F", metavar="FORMAT", help="Such as '%I %t %p'; %j is JSON, @H:@M the time.")
    ] = None,
    no_newline: Annotated[bool, typer.Option("-N", help="No newline after a message.")] = False,
    no_retained: Annotated[bool, typer.Option("-R", help="Print no retained messages.")] = False,
    retained_only: Annotated[
        bool, typer.Option("--retained-only", help="Stop at the first that is not retained.")
    ] = False,
    remove_retained: Annotated[
        bool, typer.Option("--remove-retained", help="Remove retained messages once they are printed.")
    ] = False,
    pretty: Annotated[bool, typer.Option("--pretty", help="JSON of %j and %J over several lines.")] = False,
    retain_as_published: Annotated[
        bool, typer.Option("--retain-as-published", help="Leave the retain flag as it was published (MQTT 5).")
    ] = False,
    exit_subscribed: Annotated[bool, typer.Option("-E", help="Stop once subscribed.")] = False,
    no_reconnect: Annotated[
        bool, typer.Option("--no-reconnect", help="Stop, with exit code 1, when the connection is lost.")
    ] = False,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="WHEN", help="Begin in the past: -24h, yesterday; needs an Everlog broker."),
    ] = None,
    user_property: UserProperties = None,
    qos: Qos = 0,
    *,
    target: Target,
) -> int:
    """Subscribe and print what arrives; the options are those of mosquitto_sub."""
    filters = (*(topics or ()), *([target.topic] if target.topic else ()))
    if not filters and not unsubscribe:
        raise UsageError("no topic filter", hint="give one with -t")
    for text in (*filters, *(unsubscribe or ())):
        parse_filter_option(text)
    properties = parse_pairs(user_property)
    begin = None if begin is None else exact_begin(begin)
    if begin is not None:
        parse_begin(begin, time.time_ns() // 1000)
        if target.connect.version == 5:
            wishes = (("everlog-from", begin), *([(POSITION, "yes")] if template is not None else []))
            properties = (*properties, *wishes)
        else:
            filters = tuple(f"$replay/{begin}/{text}" for text in filters)
    request = Request(
        filters=filters,
        drop=tuple(unsubscribe or ()),
        qos=qos,
        retain_as_published=retain_as_published,
        count=count,
        timeout_s=timeout,
        exit_when_subscribed=exit_subscribed,
        reconnect=not no_reconnect and begin is None,  # a replay would start over
        user_properties=properties,
    )
    form = formatter(verbose=verbose, template=template, newline=not no_newline, pretty=pretty)
    if begin is not None and template is not None:
        form = with_own_times(form)
    excluded = tuple(map(parse_filter_option, exclude or ()))
    printer = Printer(sys.stdout.buffer, form, excluded, count, no_retained, retained_only)
    removed: deque[str] | None = deque() if remove_retained else None
    return asyncio.run(subscribe(target, request, printer, removed))


def with_own_times(form: Formatter) -> Formatter:
    """Return a formatter that shows the time at which the broker took a message, which it was asked to tell."""

    def show(message: Message) -> bytes:
        entry = entry_of(message)
        if entry is None:
            return form(message)
        return form(message.without_user_properties((POSITION, TIME)), entry.time_us * 1000)

    return show


class Printer:
    """Prints messages until there are enough; then `finished` is set."""

    def __init__(
        self,
        out: BinaryIO,
        form: Formatter,
        exclude: tuple[Filter, ...] = (),
        count: int | None = None,
        no_retained: bool = False,
        retained_only: bool = False,
    ) -> None:
        self.out, self.form, self.exclude = out, form, exclude
        self.left = count
        self.no_retained, self.retained_only = no_retained, retained_only
        self.finished = False

    def take(self, messages: list[Message]) -> int:
        """Print and flush; returns how many were taken: fewer than all when that is enough."""
        lines: list[bytes] = []
        taken, finished = 0, self.finished
        for message in messages:
            if finished or (self.retained_only and not message.retain):
                finished = True
                break
            taken += 1
            if (self.no_retained and message.retain) or self._is_excluded(message):
                continue
            lines.append(self.form(message))
            if self.left is not None:
                self.left -= 1
                finished = self.left == 0
        self.out.write(b"".join(lines))
        self.out.flush()
        self.finished = finished  # not before it is written: what can't be is an error
        return taken

    def _is_excluded(self, message: Message) -> bool:
        return bool(self.exclude) and any(matches(flt, message.topic.decode()) for flt in self.exclude)


async def subscribe(target: Target, request: Request, printer: Printer, removed: deque[str] | None = None) -> int:
    """Print until that is enough, or the time is up (27), over as many connections as it takes.

    With `removed`, retained messages that were printed are removed at the broker; it is where their topics wait.
    """

    def take(messages: list[Message]) -> int:
        taken = printer.take(messages)
        if removed is not None:
            removed.extend(one.topic.decode() for one in messages[:taken] if one.retain and one.payload)
        return taken

    async def work(client: AsyncClient) -> int:
        if request.drop:
            await client.unsubscribe(request.drop, target.properties.get("unsubscribe", NO_PROPERTIES))
        if request.filters and not await _ask(client, request, target):
            return 1
        while not request.exit_when_subscribed:
            await client.wait_until(lambda: printer.finished or bool(removed))
            while removed:
                await client.publish(removed[0], b"", 1, True)
                removed.popleft()
            await client.settle()
            if printer.finished:
                break
        return 0

    try:
        async with asyncio.timeout(request.timeout_s):
            return await keep_connected(target, work, take, again=request.reconnect)
    except TimeoutError:
        return TIMED_OUT


async def _ask(client: AsyncClient, request: Request, target: Target) -> bool:
    """Subscribe, and return whether anything was granted; what was not is reported on standard error."""
    filters, properties = request.filters, request.user_properties
    asked = tuple(Subscription(text, request.qos, False, request.retain_as_published) for text in filters)
    own = Properties(user_properties=properties) if properties else NO_PROPERTIES
    reasons = await client.subscribe(asked, merged(own, target.properties.get("subscribe", NO_PROPERTIES)))
    if target.quiet:
        return not all(reason.is_error for reason in reasons)
    for subscription, reason in zip(asked, reasons, strict=True):
        if reason.is_error:
            words = client.answered.reason_string or reason.words
            print(f"everlog: {subscription.filter} was refused: {visible_line(words)}", file=sys.stderr)
    if client.answered.reason_string and not any(reason.is_error for reason in reasons):
        print(f"everlog: {visible_line(client.answered.reason_string)}", file=sys.stderr)
    return not all(reason.is_error for reason in reasons)
