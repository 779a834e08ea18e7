"""The tables of a stream's SQLite file (`docs/formats/streams.md`), and the statements that write and read them.

A new file is a copy of a template with the tables that every stream has. The others are made when they are first
needed, since each takes a page of every file.
"""

import sqlite3
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

APPLICATION_ID = 0x4556_5354  # "EVST"
VERSION = 1
VERSION_WITH_BLOCKS = 2

_ALWAYS = """
CREATE TABLE stream (
    one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT NOT NULL, born INTEGER NOT NULL, kind TEXT NOT NULL,
    applied INTEGER NOT NULL, last_seq INTEGER NOT NULL, messages INTEGER NOT NULL, bytes INTEGER NOT NULL,
    config BLOB NOT NULL, forgotten INTEGER NOT NULL
);
"""
_MESSAGES = """
CREATE TABLE messages (
    seq INTEGER PRIMARY KEY, position INTEGER NOT NULL, time_us INTEGER NOT NULL, value BLOB, headers TEXT,
    timestamp, expires_us INTEGER
);
"""
_ENTRIES = """
CREATE TABLE entries (
    key TEXT PRIMARY KEY, revision INTEGER NOT NULL, position INTEGER NOT NULL, time_us INTEGER NOT NULL, value BLOB,
    headers TEXT, timestamp, expires_us INTEGER
);
"""
ON_DEMAND = {
    "blocks": """CREATE TABLE {name} (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, position INTEGER NOT NULL,
        time_us INTEGER NOT NULL, bytes INTEGER NOT NULL, messages BLOB NOT NULL)""",
    "expiring_messages": "CREATE INDEX {name} ON messages (expires_us) WHERE expires_us IS NOT NULL",
    "expiring_entries": "CREATE INDEX {name} ON entries (expires_us) WHERE expires_us IS NOT NULL",
    "aging_messages": "CREATE INDEX {name} ON messages (time_us)",
    "aging_entries": "CREATE INDEX {name} ON entries (time_us)",
    "ids": """CREATE TABLE {name} (id TEXT PRIMARY KEY, position INTEGER NOT NULL, time_us INTEGER NOT NULL,
        previous INTEGER NOT NULL, seq INTEGER NOT NULL, count INTEGER NOT NULL, seqs BLOB) WITHOUT ROWID""",
    "parts": """CREATE TABLE {name} (upload TEXT NOT NULL, part INTEGER NOT NULL, time_us INTEGER NOT NULL,
        data BLOB NOT NULL, PRIMARY KEY (upload, part))""",
    "queues": """CREATE TABLE {name} (queue TEXT PRIMARY KEY, config BLOB NOT NULL, cursor INTEGER NOT NULL,
        acked INTEGER NOT NULL, ticket INTEGER NOT NULL) WITHOUT ROWID""",
    "taken": """CREATE TABLE {name} (queue TEXT NOT NULL, seq INTEGER NOT NULL, ticket INTEGER NOT NULL,
        due_us INTEGER NOT NULL, deliveries INTEGER NOT NULL, PRIMARY KEY (queue, seq)) WITHOUT ROWID""",
    "dead": """CREATE TABLE {name} (queue TEXT NOT NULL, seq INTEGER NOT NULL, deliveries INTEGER NOT NULL,
        died_us INTEGER NOT NULL, position INTEGER NOT NULL, time_us INTEGER NOT NULL, value BLOB, headers TEXT,
        timestamp, expires_us INTEGER, is_revived INTEGER NOT NULL, PRIMARY KEY (queue, seq))""",
}

GROUP = 32  # rows of one statement
_PLAIN_MESSAGE = "INSERT OR REPLACE INTO messages (seq, position, time_us, value) VALUES "
_PLAIN_ENTRY = "INSERT OR REPLACE INTO entries (key, revision, position, time_us, value) VALUES "
PUT_MESSAGE = "INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)"
PUT_ENTRY = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
PUT_BLOCK = "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?)"
PUT_ID = "INSERT OR REPLACE INTO ids VALUES (?, ?, ?, ?, ?, ?, ?)"
PUT_PLAIN_MESSAGE = _PLAIN_MESSAGE + "(?, ?, ?, ?)"
PUT_PLAIN_ENTRY = _PLAIN_ENTRY + "(?, ?, ?, ?, ?)"
PUT_PLAIN_MESSAGES = _PLAIN_MESSAGE + ", ".join(["(?, ?, ?, ?)"] * GROUP)
PUT_PLAIN_ENTRIES = _PLAIN_ENTRY + ", ".join(["(?, ?, ?, ?, ?)"] * GROUP)
SIZE = "coalesce(length(value), 0) + coalesce(length(CAST(headers AS BLOB)), 0)"
KEY_SIZE = SIZE + " + length(CAST(key AS BLOB))"


@lru_cache
def template(kind: str) -> bytes:
    """Return the bytes of an empty file of a kind."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "template"
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_ALWAYS + (_MESSAGES if kind == "stream" else _ENTRIES))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("INSERT INTO stream VALUES (1, '', -1, ?, -1, 0, 0, 0, x'', -1)", (kind,))
        connection.close()
        return path.read_bytes()
