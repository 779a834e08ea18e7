"""What Spark itself passes among the options of a source or a sink, told apart from what the user gave.

A table of Spark's catalog (`CREATE TABLE ... USING everlog`) is read without the options that it was made with: Spark
4.3 hands over its columns and nothing else. So a table that is made here carries its options in the metadata of its
first column, and they are found there again.
"""

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

METADATA = "everlog.options"
_PREFIX = "option."  # of what stood in OPTIONS of a CREATE TABLE; TBLPROPERTIES come without it
_SPARKS = ("queryname", "owner", "provider", "location", "external", "comment", "is_managed_location", "collation")


def is_table_made(given: Mapping[str, str]) -> bool:
    """Return whether these are the properties of a table that is being made in Spark's catalog."""
    return "provider" in {name.lower() for name in given}


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the user gave."""
    if not is_table_made(given):
        return {name: value for name, value in given.items() if name.lower() not in _SPARKS}
    named = {name.lower(): value for name, value in given.items()}
    found = {name[len(_PREFIX) :]: value for name, value in given.items() if name.lower().startswith(_PREFIX)}
    place = named.get("path") or named.get("location")
    if place and "table" not in found and "path" not in found:
        found["path"] = place
    return found


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a table that is being made, with its options."""
    first = schema.fields[0]
    kept = {**(first.metadata or {}), METADATA: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, kept), *schema.fields[1:]])


def options_in(schema: StructType) -> dict[str, str]:
    """Return the options that the columns of a table carry."""
    for field in schema.fields:
        if METADATA in (field.metadata or {}):
            found = json.loads(field.metadata[METADATA])
            return {str(name): str(value) for name, value in found.items()}
    return {}
