"""The blocks of a stream's file: written, read, and made rows again where messages in the midst of them change.

Blocks and rows of `messages` never have the same seq. Whoever changes or removes a message has the blocks that have it
made rows first (`open_blocks`); a block whose messages all go is removed whole. All of it happens inside of the
transaction of the caller.
"""

import sqlite3
from typing import Any

from everlog.streams import stream_tables as tables
from everlog.streams.message_blocks import block_messages, pack_block

_ALL = 1 << 40
MOST_SEQ = (1 << 62) - 1
# the block that has a seq, or begins behind it, and those that follow
_FROM = "first >= coalesce((SELECT max(first) FROM blocks WHERE first <= ?1), ?1) AND last >= ?1"
_INSIDE = "first >= ?1 AND first <= ?2 AND last <= ?2"
_BLOCKS = f"SELECT first, last, position, time_us, messages FROM blocks WHERE {_FROM} AND first <= ?2 ORDER BY first"


def put_blocks(connection: sqlite3.Connection, run: list[Any]) -> None:
    """Write messages as blocks."""
    start = 0
    while start < len(run):
        block = pack_block(run, start)
        connection.execute(tables.PUT_BLOCK, block)
        start += block[1] - block[0] + 1


def open_blocks(connection: sqlite3.Connection, first: int, last: int) -> int:
    """Make rows of the blocks that have messages in a range of seqs; return how many messages those were."""
    count = 0
    while blocks := connection.execute(f"{_BLOCKS} LIMIT 16", (first, last)).fetchall():
        for block in blocks:
            connection.execute("DELETE FROM blocks WHERE first = ?", (block[0],))
            rows = [(one[0], one[6], one[1], one[2]) for one in block_messages(block, block[0], block[1], _ALL)]
            connection.executemany(tables.PUT_PLAIN_MESSAGE, rows)
            count += len(rows)
    return count


def drop_messages(connection: sqlite3.Connection, first: int, last: int) -> None:
    """Remove the blocks inside of a range of seqs, and make rows of those that are partly in it."""
    connection.execute(f"DELETE FROM blocks WHERE {_INSIDE}", (first, last))
    open_blocks(connection, first, last)


def find_message(connection: sqlite3.Connection, seq: int, most_bytes: int) -> tuple[Any, ...] | None:
    """Return a message of a block as `block_messages` does, or None."""
    blocks = connection.execute(f"{_BLOCKS} LIMIT 1", (seq, seq)).fetchall()
    return block_messages(blocks[0], seq, seq, most_bytes)[0] if blocks else None


def next_block(connection: sqlite3.Connection, first: int, last: int) -> tuple[Any, ...] | None:
    """Return the first block with messages in a range of seqs, or None."""
    found: tuple[Any, ...] | None = connection.execute(f"{_BLOCKS} LIMIT 1", (first, last)).fetchone()
    return found


def measure(connection: sqlite3.Connection, first: int, last: int) -> tuple[int, int]:
    """Return how many messages blocks have in a range of seqs, and the bytes of their values."""
    query = f"SELECT coalesce(sum(last - first + 1), 0), coalesce(sum(bytes), 0) FROM blocks WHERE {_INSIDE}"
    count, size = connection.execute(query, (first, last)).fetchone()
    edges = {block[0]: block for seq in (first, last) if (block := next_block(connection, seq, seq)) is not None}
    for block in edges.values():
        if block[0] < first or block[1] > last:
            inside = block_messages(block, first, last, 0)
            count, size = count + len(inside), size + sum(one[7] or 0 for one in inside)
    return count, size


def sizes(connection: sqlite3.Connection, after: int, limit: int) -> list[tuple[int, int]]:
    """Return (seq, size) of the first messages of blocks behind a seq."""
    found: list[tuple[int, int]] = []
    while len(found) < limit:
        block = next_block(connection, after + 1, MOST_SEQ)
        if block is None:
            break
        found += [(one[0], one[7] or 0) for one in block_messages(block, after + 1, block[1], 0)]
        after = block[1]
    return found[:limit]


def open_old(connection: sqlite3.Connection, before_us: int, limit: int) -> int | None:
    """Make rows of blocks that begin at a time or before, about so many; return when the next one begins, or None."""
    while True:
        block = connection.execute("SELECT first, last, time_us FROM blocks ORDER BY first LIMIT 1").fetchone()
        if block is None:
            return None
        if block[2] > before_us or limit <= 0:
            return int(block[2])
        limit -= open_blocks(connection, block[0], block[1])


def take_back(connection: sqlite3.Connection, end: int) -> None:
    """Remove what blocks have from a position on."""
    block = connection.execute(
        "SELECT first, last FROM blocks WHERE position < ? ORDER BY first DESC LIMIT 1", (end,)
    ).fetchone()
    connection.execute("DELETE FROM blocks WHERE position >= ?", (end,))
    if block is not None:
        open_blocks(connection, *block)
