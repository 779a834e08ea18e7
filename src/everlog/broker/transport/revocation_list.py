"""The serial numbers in a certificate revocation list (RFC 5280, section 5.1), of PEM text.

OpenSSL checks the list in handshakes; this says which clients that are connected it names, when it is read again.
"""

import base64
import re
from collections.abc import Iterator

_PEM = re.compile(rb"-----BEGIN X509 CRL-----(.+?)-----END X509 CRL-----", re.DOTALL)
_SEQUENCE, _TIMES = 0x30, (0x17, 0x18)


def revoked_serials(pem: bytes) -> frozenset[int]:
    """Return the serial numbers of all lists in a file; ValueError if one is not what it should be."""
    return frozenset(serial for text in _PEM.findall(pem) for serial in _serials(base64.b64decode(text)))


def _serials(der: bytes) -> Iterator[int]:
    try:
        (_, whole), *_ = _values(der)
        (_, listed), *_ = _values(whole)
        fields = list(_values(listed))
        last_time = max(at for at, (tag, _) in enumerate(fields) if tag in _TIMES)
        for tag, entries in fields[last_time + 1 : last_time + 2]:
            if tag == _SEQUENCE:  # it is left out where nothing is revoked
                for _, entry in _values(entries):
                    (_, serial), *_ = _values(entry)
                    yield int.from_bytes(serial, "big", signed=True)
    except IndexError:
        raise ValueError("a revocation list ends too early") from None


def _values(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each value in these bytes."""
    at = 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(der[at : at + count], "big"), at + count
        if at + size > len(der):
            raise ValueError("a value of a revocation list is cut off")
        yield tag, der[at : at + size]
        at += size
