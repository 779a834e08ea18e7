"""Reading memory that may be a mapped file: an I/O error or a file cut short is an answer, not the end of the process.

Never compiled itself: the `.pxd` beside it holds the inline C twins that kernels cimport. A function that reads mapped
memory begins with `if faulted(): return ...`, holds no Python object, and its caller calls `unguard` behind it.
Interpreted, an error on a mapped page does end the process; the log's own reads are not mapped.
"""

from typing import cast

from everlog.base.memory import Buffer


def address(view: memoryview) -> Buffer:
    """The bytes of a buffer; in C their address, valid while the view is held."""
    return cast(Buffer, view)


def faulted() -> bool:
    """False when it is called; in C the code goes on from here with True if what follows touches a lost page."""
    return False


def unguard() -> None:
    """Lost pages are no longer expected on this thread."""


def ahead(source: Buffer, position: int) -> None:
    """A hint that this byte will be read soon."""
