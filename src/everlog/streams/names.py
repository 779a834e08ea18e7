"""Names of streams and key-value stores: MQTT topics, so that the rules of a bus can speak of them."""

from everlog.base import UsageError
from everlog.store import shard_of

MOST_NAME_BYTES = 512
MOST_KEY_BYTES = 4096
ABOVE_ALL = "\U0010ffff" * (MOST_KEY_BYTES // 4 + 1)  # with a prefix before it: above all that begins so
_FORBIDDEN = "+#\0"


def check_name(name: str) -> None:
    """Raise UsageError unless a stream may have this name."""
    if not isinstance(name, str) or not name.isascii():
        _check_text(name)
    if not name or (len(name) * 4 > MOST_NAME_BYTES and len(name.encode()) > MOST_NAME_BYTES):
        raise UsageError(f"a name has 1 to {MOST_NAME_BYTES} bytes", hint="choose a shorter name")
    for one in _FORBIDDEN:
        if one in name:
            raise UsageError(f"the name {name!r} holds {one!r}", hint="leave out + # and NUL")
    if name[0] == "$" or "" in name.split("/"):
        raise UsageError(f"the name {name!r} has an empty level or begins with $", hint="name it like team/project")


def _check_text(name: object) -> None:
    if not isinstance(name, str):
        raise UsageError(f"a name is text, not {type(name).__name__}", hint="name it like team/project")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the name {name!r} can't be UTF-8: {error.reason}", hint="choose another name") from None


def state_shard_of(name: str, shards: int) -> int:
    """Return the state shard of a name: a hash of it, so that it is the same everywhere."""
    return shard_of(name.encode(), shards)
