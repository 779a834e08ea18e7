"""Sending parts of packets straight to a socket: one system call in Python, and the same in C.

Never compiled itself: the `.pxd` beside it holds an inline C twin, which `output` cimports.
"""

import os
from collections.abc import Sequence


def send_parts(fd: int, parts: Sequence[bytes | memoryview]) -> int:
    """Send as many bytes of the parts as a socket takes at once and return how many, 0 if it fails too."""
    try:
        return os.writev(fd, parts[:1000])
    except OSError:
        return 0  # whoever writes the rest is told
