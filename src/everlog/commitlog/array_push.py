"""Appending to a column: `array.append` in Python, growing the array itself in C.

Never compiled itself: the `.pxd` beside it holds inline C twins. No column is lent out as a buffer while it grows.
"""

from array import array


def push64(column: "array[int]", value: int) -> None:
    """Append to a column of 64-bit numbers."""
    column.append(value)


def push32(column: "array[int]", value: int) -> None:
    """Append to a column of 32-bit numbers."""
    column.append(value)
