"""Topic names and topic filters: which are valid, and which filter matches which name.

`matches` is the plain reference: the trie, the cache and the index must agree with it, and the property tests say so.
A `Filter` is only made by `parse_filter`, so code that holds one need not check it again.
"""

from functools import lru_cache

from msgspec import Struct

from everlog.base import PeerError

MALFORMED_PACKET = 0x81
TOPIC_FILTER_INVALID = 0x8F
TOPIC_NAME_INVALID = 0x90
SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

MAX_TOPIC_BYTES = 65_535  # [MQTT-4.7.3-3]
MAX_TOPIC_LEVELS = 128

SHARE_PREFIX = "$share/"
_KNOWN_FILTERS = 16_384  # kept parsed


class Filter(Struct, frozen=True, gc=False):
    """A valid topic filter; `pattern` is its text without the `$share/<group>/` in front."""

    text: str
    pattern: str
    group: str | None
    is_exact: bool

    @property
    def levels(self) -> list[str]:
        """The pattern's levels, split on demand to keep stored filters small."""
        return self.pattern.split("/")

    @property
    def starts_wild(self) -> bool:
        """Whether the first level is a wildcard, so that no `$` topic matches."""
        return self.pattern[0] in "+#"

    @property
    def ends_open(self) -> bool:
        """Whether the last level is `#`."""
        return self.pattern.endswith("#")


def check_topic_name(name: str, *, max_levels: int = MAX_TOPIC_LEVELS, max_bytes: int = MAX_TOPIC_BYTES) -> None:
    """Raise PeerError unless `name` is one that a message, or a will, can be published to."""
    _check_string(name, TOPIC_NAME_INVALID, "topic name", max_levels, max_bytes)
    if "+" in name or "#" in name:  # [MQTT-4.7.0-1] [MQTT-3.3.2-2] no wildcards in a topic name
        raise PeerError(TOPIC_NAME_INVALID, "topic name has a wildcard", clause="MQTT-4.7.0-1")


def parse_filter(
    text: str,
    *,
    max_levels: int = MAX_TOPIC_LEVELS,
    max_bytes: int = MAX_TOPIC_BYTES,
    allow_shared: bool = True,
    allow_wildcards: bool = True,
) -> Filter:
    """Return the filter that a SUBSCRIBE or UNSUBSCRIBE names; PeerError says what is wrong with it."""
    _check_string(text, TOPIC_FILTER_INVALID, "topic filter", None, max_bytes)
    group, pattern = None, text
    if text.startswith(SHARE_PREFIX):
        if not allow_shared:
            raise PeerError(SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, "shared subscriptions are not allowed")
        group, pattern = _split_share(text)
    _check_levels(pattern, TOPIC_FILTER_INVALID, "topic filter", max_levels)
    is_exact = "+" not in pattern and "#" not in pattern
    if not is_exact:
        if not allow_wildcards:
            raise PeerError(WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, "wildcard subscriptions are not allowed")
        _check_wildcards(pattern)
    return Filter(text, pattern, group, is_exact)


@lru_cache(_KNOWN_FILTERS)
def known_filter(text: str) -> Filter:
    """Return the filter of a subscription that there is: it was checked before, and is asked for again and again."""
    if text.startswith(SHARE_PREFIX):
        return parse_filter(text)
    return Filter(text, text, None, "+" not in text and "#" not in text)


def matches(flt: Filter, topic: str) -> bool:
    """Return whether a message to the valid name `topic` is for `flt`."""
    if topic.startswith("$") and flt.starts_wild:  # [MQTT-4.7.2-1] a leading wildcard does not match $ topics
        return False
    wanted, levels = flt.levels, topic.split("/")
    for number, level in enumerate(wanted):
        if level == "#":  # any number of levels more, and the parent itself
            return True
        if number == len(levels) or (level != "+" and level != levels[number]):  # [MQTT-4.7.3-4] no normalisation
            return False
    return len(wanted) == len(levels)


def _split_share(text: str) -> tuple[str, str]:
    group, separator, pattern = text[len(SHARE_PREFIX) :].partition("/")
    if not group:  # [MQTT-4.8.2-1]
        raise PeerError(TOPIC_FILTER_INVALID, "share name is empty", clause="MQTT-4.8.2-1")
    if "+" in group or "#" in group:  # [MQTT-4.8.2-2]
        raise PeerError(TOPIC_FILTER_INVALID, "share name has a wildcard", clause="MQTT-4.8.2-2")
    if not separator or not pattern:  # [MQTT-4.8.2-2] a "/" and a filter must follow
        raise PeerError(TOPIC_FILTER_INVALID, "share name has no topic filter after it", clause="MQTT-4.8.2-2")
    return group, pattern


def _check_wildcards(pattern: str) -> int:
    levels = pattern.split("/")
    for number, level in enumerate(levels, 1):
        if "#" in level and (level != "#" or number != len(levels)):  # [MQTT-4.7.1-1]
            raise PeerError(
                TOPIC_FILTER_INVALID, "# is not alone in the last level of the filter", clause="MQTT-4.7.1-1"
            )
        if "+" in level and level != "+":  # [MQTT-4.7.1-2]
            raise PeerError(TOPIC_FILTER_INVALID, "+ does not fill its level of the filter", clause="MQTT-4.7.1-2")
    return 0


def _check_string(text: str, reason: int, what: str, max_levels: int | None, max_bytes: int) -> int:
    if not text:  # [MQTT-4.7.3-1]
        raise PeerError(reason, f"{what} is empty", clause="MQTT-4.7.3-1")
    if "\0" in text:  # [MQTT-4.7.3-2] [MQTT-1.5.4-2]
        raise PeerError(MALFORMED_PACKET, f"{what} has a null character", clause="MQTT-1.5.4-2")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:  # [MQTT-1.5.4-1] no surrogates
        raise PeerError(MALFORMED_PACKET, f"{what} is not valid UTF-8", clause="MQTT-1.5.4-1") from None
    if size > max_bytes:  # [MQTT-4.7.3-3], or the tighter limit that is set
        clause = "MQTT-4.7.3-3" if size > MAX_TOPIC_BYTES else ""
        raise PeerError(reason, f"{what} has {size} bytes, limit {max_bytes}", clause=clause)
    if max_levels is not None:
        _check_levels(text, reason, what, max_levels)
    return 0


def _check_levels(text: str, reason: int, what: str, max_levels: int) -> int:
    if text.count("/") >= max_levels:
        raise PeerError(reason, f"{what} has {text.count('/') + 1} levels, limit {max_levels}")
    return 0
