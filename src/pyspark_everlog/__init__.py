"""Spark looks for modules of this name and takes `DefaultSource`: so `spark.read.format("everlog")` needs no set-up."""

from everlog.spark import EverlogSource as DefaultSource
from everlog.spark import hush

hush()

__all__ = ["DefaultSource"]
