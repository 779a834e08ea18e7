"""Reads memory that may be a mapped file, so that an I/O error or a file cut short does not end the process.

Never compiled itself: the `.pxd` beside it holds the inline C twins that kernels cimport. A function that reads mapped
memory begins with `if faulted(): return ...` and holds no Python object; its caller calls `unguard` afterwards. In
interpreted code an error on a mapped page does end the process; the log's own reads are not mapped.
"""

from typing import cast

from everlog.base.memory import Buffer


def address(view: memoryview) -> Buffer:
    """Return the bytes of a buffer; in C, their address, valid while the view is held."""
    return cast(Buffer, view)


def faulted() -> bool:
    """Return False; in C, it returns again with True if the code after it touches a lost page."""
    return False


def unguard() -> None:
    """Stop expecting lost pages on this thread."""


def ahead(source: Buffer, position: int) -> None:
    """Hint that this byte will be read soon."""
