"""The writers of one connection, one for each way in which its subscriptions are written."""

from typing import TypeAlias

from everlog.mqtt import PublishWriter

_MOST = 64  # beyond, all are made anew: with identifiers there may be one for each topic
_PLAIN = (b"", False, 0)  # of a subscription that asks for nothing special

Manner: TypeAlias = tuple[bytes, bool, int]  # identifiers, retain as published, what is told besides


class Writers(dict[Manner, PublishWriter]):
    """The writers by manner, made when first asked for; aliases are the connection's, so one writer alone has them."""

    __slots__ = ("_max_aliases", "_max_packet_bytes", "_mount", "_version")

    def __init__(self, version: int, max_packet_bytes: int, max_aliases: int, mount: str = "") -> None:
        super().__init__()
        self._version = version
        self._max_packet_bytes = max_packet_bytes
        self._max_aliases = max_aliases
        self._mount = mount.encode()

    def __missing__(self, manner: Manner) -> PublishWriter:
        if len(self) >= _MOST:
            plain = self.pop(_PLAIN, None)
            self.clear()
            if plain is not None:
                self[_PLAIN] = plain
        identifiers, retain_as_published, tells = manner
        aliases = self._max_aliases if manner == _PLAIN else 0
        writer = self[manner] = PublishWriter(
            self._version, self._max_packet_bytes, aliases, retain_as_published, identifiers, tells, self._mount
        )
        return writer
