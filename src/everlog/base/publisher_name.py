"""Who has published a message: a name that segments give an id to, as they do with topics.

The name is the client id and, if there is one, a zero byte and the user; MQTT allows no zero byte in either.
"""

import cython

from everlog.base.records import NO_PUBLISHER

if not cython.compiled:
    from everlog.base.memory import pointer
    from everlog.base.topic_table import TopicTable

_LOST = b"\0\0"  # no publisher's name begins like this: one without a client id has nobody's name
_NOBODY = NO_PUBLISHER


class PublisherName:
    """The name of one connection's publisher, with its id in the segment that asked last.

    `keeps_ids` says that its session is durable: the packet ids of its QoS 2 messages are kept with them.
    """

    def __init__(self, name: bytes, keeps_ids: bool = False) -> None:
        self.name = name
        self.keeps_ids = keeps_ids
        self.segment = 0
        self.number = _NOBODY

    def number_in(self, table: TopicTable, segment: int) -> int:
        """Return its id in a segment's table of publishers, which it is added to; `segment` is unique and not 0."""
        if self.segment != segment:
            found = table.find_or_add(pointer(self.name), 0, len(self.name))
            self.number = _NOBODY if found < 0 else found
            self.segment = segment
        return self.number


class PublisherColumn:
    """The publishers of messages of several connections: for each message (u32) its place among `names`, which holds
    None for nobody."""

    def __init__(self, names: list[PublisherName | None], places: bytearray) -> None:
        self.names = names
        self.places = places


def name_publisher(client_id: str, user: str | None) -> bytes:
    """Return the name of a client, and of its user if there is one."""
    return client_id.encode() if user is None else b"\0".join((client_id.encode(), user.encode()))


def lost_publisher(number: int) -> bytes:
    """Return what stands for a publisher whose name was in a batch that is damaged."""
    return b"%slost/%d" % (_LOST, number)


def split_publisher(name: bytes) -> tuple[str, str | None]:
    """Return client id and user of a publisher's name; the client id is empty if the name was lost."""
    if name.startswith(_LOST):
        return "", None
    client_id, zero, user = name.partition(b"\0")
    return client_id.decode(), user.decode() if zero else None
