"""Brokers of two versions side by side: which formats each understands, and which one is written.

A format is what brokers of a cluster write for each other: rows, objects, frames. A broker tells the lowest and the
highest that it understands in its row. What is written is the highest that all of the living understand, and the store
says which that was so far: it only grows, behind a lock that a broker takes which joins. So nobody joins who could not
read what is there, and nothing is written that somebody living can't read.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from everlog.base import UsageError
from everlog.cluster.link_hello import FORMAT_MAX, FORMAT_MIN
from everlog.ownership import Member

_HINT = "update the older brokers first; releases one apart understand each other"


class BrokerAbout(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a broker's row tells the others: what it understands, and how clients reach it."""

    format_min: int = 1
    format_max: int = 1
    clients: str = ""  # HOST:PORT, for Server Reference; nothing if clients are not to be told


def describe(clients: str = "", format_min: int = FORMAT_MIN, format_max: int = FORMAT_MAX) -> BrokerAbout:
    """Return what this broker tells."""
    return BrokerAbout(format_min=format_min, format_max=format_max, clients=clients)


def encode_about(about: BrokerAbout) -> str:
    """Return the text of a row."""
    return msgspec.json.encode(about).decode()


def decode_about(text: str) -> BrokerAbout:
    """Return what a row tells; one that says nothing is of the first format."""
    if not text:
        return BrokerAbout()
    try:
        return msgspec.json.decode(text, type=BrokerAbout)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the row of a broker can't be read: {error}", hint="use a newer Everlog") from error


def about_of(member: Member) -> BrokerAbout:
    """Return what a member tells of itself."""
    return decode_about(member.about)


def agreed_format(abouts: Mapping[str, BrokerAbout]) -> int:
    """Return the highest format that all brokers understand."""
    return min(about.format_max for about in abouts.values())


def check_formats(mine: BrokerAbout, others: Mapping[str, BrokerAbout], written: int) -> None:
    """Raise UsageError if a broker may not join: it can't read what is written, or some of the living can't read it."""
    said = f"this Everlog understands formats {mine.format_min} to {mine.format_max}"
    if mine.format_max < written:
        raise UsageError(f"the cluster is written in format {written}, and {said}", hint="use a newer Everlog")
    for name, about in others.items():
        if about.format_max < mine.format_min or about.format_min > mine.format_max:
            raise UsageError(
                f"the broker {name!r} understands formats {about.format_min} to {about.format_max}, and {said}",
                hint=_HINT,
            )
