"""The key of decoys: what an unknown user of SCRAM is shown is the same at every start, as for a user who is known."""

import secrets
from typing import Annotated

import msgspec

from everlog.store import read_record, write_record

FILE_NAME = "decoy-key.json"


class DecoyKey(msgspec.Struct, frozen=True):
    """The content of the file."""

    key: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    version: int = 1


def read_decoy_key(data: str) -> bytes:
    """Return the key of a data directory, made at the first call."""
    hint = "remove it: the next start makes another, and unknown users are shown other salts"
    record = read_record(data, FILE_NAME, DecoyKey, (1,), hint)
    if record is None:
        record = DecoyKey(key=secrets.token_hex(32))
        write_record(data, FILE_NAME, record)
    return bytes.fromhex(record.key)
