"""The writers of one connection, one for each way in which its subscriptions are written."""

from typing import TypeAlias

from everlog.mqtt import PublishWriter

_MOST = 64  # beyond, all are made anew: with identifiers there may be one for each topic
_PLAIN = (b"", False, False)  # of a subscription that asks for nothing special

Manner: TypeAlias = tuple[bytes, bool, bool]  # identifiers, retain as published, with position


class Writers(dict[Manner, PublishWriter]):
    """The writers by manner, made when first asked for; aliases are the connection's, so one writer alone has them."""

    __slots__ = ("_max_aliases", "_max_packet_bytes", "_version")

    def __init__(self, version: int, max_packet_bytes: int, max_aliases: int) -> None:
        super().__init__()
        self._version = version
        self._max_packet_bytes = max_packet_bytes
        self._max_aliases = max_aliases

    def __missing__(self, manner: Manner) -> PublishWriter:
        if len(self) >= _MOST:
            plain = self.pop(_PLAIN, None)
            self.clear()
            if plain is not None:
                self[_PLAIN] = plain
        identifiers, retain_as_published, with_position = manner
        aliases = self._max_aliases if manner == _PLAIN else 0
        writer = self[manner] = PublishWriter(
            self._version, self._max_packet_bytes, aliases, retain_as_published, identifiers, with_position
        )
        return writer
