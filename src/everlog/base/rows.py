"""Columns of row numbers, as kernels take them."""

from array import array
from collections.abc import Iterable


def row_column(rows: Iterable[int]) -> bytearray:
    """Return row numbers as a column of 32-bit integers."""
    return bytearray(array("I", rows))
