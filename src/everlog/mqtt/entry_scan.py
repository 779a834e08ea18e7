"""Steps over long lists in a packet, user properties and topic filters, as far as they are plainly right.

The plain readers know every rule and its reason code; they judge the first entry at which a scan stops. So a packet
with hundreds of thousands of entries is checked in a few milliseconds, and its entries are read when they are used.
"""

import cython

if not cython.compiled:
    from everlog.base.memory import Buffer, equal, pointer, text_ok

_USER_PROPERTY = 0x26
_SHARE = b"$share/"


def skip_pairs(data: bytes, at: int, end: int) -> int:
    """Return where the run of well-formed user properties that begins at `at` ends; `end` lies inside `data`."""
    source = pointer(data)
    while at < end and source[at] == _USER_PROPERTY:
        stop = _skip_text(source, at + 1, end)
        if stop >= 0:
            stop = _skip_text(source, stop, end)
        if stop < 0:
            break
        at = stop
    return at


def skip_filters(data: bytes, at: int, end: int, version: int) -> int:
    """Return where the run of well-formed topic filters that begins at `at` ends; `end` lies inside `data`.

    Each has the subscription options of an MQTT version behind it, or none if `version` is 0.
    """
    source = pointer(data)
    share = pointer(_SHARE)
    while at < end:
        stop = _skip_text(source, at, end)
        if stop < at + 3:  # not well-formed, or empty
            break
        if version:
            if stop >= end:
                break
            options = source[stop]
            if options & 3 == 3 or options & 0xC0 or options >> 4 == 3 or (version != 5 and options > 2):
                break
            if options & 4 and stop - at >= 9 and equal(source, at + 2, share, 0, 7):
                break
            stop += 1
        at = stop
    return at


def _skip_text(source: "Buffer", at: int, end: int) -> int:
    """Return where a string ends, or -1 unless it is well-formed."""
    if end - at < 2:
        return -1
    size = source[at] << 8 | source[at + 1]
    if size > end - at - 2 or not text_ok(source, at + 2, size):
        return -1
    return at + 2 + size
