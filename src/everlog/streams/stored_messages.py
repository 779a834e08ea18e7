"""The messages of a stream's file, whether they are rows or in blocks."""

from typing import Any

from everlog.streams import block_table as blocks
from everlog.streams import stream_tables as tables
from everlog.streams.message_blocks import block_messages
from everlog.streams.row_messages import take_messages
from everlog.streams.stored_rows import MESSAGES
from everlog.streams.stream_file import StreamFile
from everlog.streams.values import StoredMessage

MOST_SEQ = blocks.MOST_SEQ
_FIRST_ROWS = 64
_MOST_ROWS = 1024


def find_row(file: StreamFile | None, seq: int, most_bytes: int) -> tuple[Any, ...] | None:
    """Return a message as a row of MESSAGES, or None; a value that is larger than `most_bytes` is left out."""
    if file is None:
        return None
    rows = file.rows(f"{MESSAGES} WHERE seq = ?2", (most_bytes, seq))
    if rows:
        found: tuple[Any, ...] = rows[0]
        return found
    if not file.has("blocks"):
        return None
    with file.held() as connection:
        return blocks.find_message(connection, seq, most_bytes)


def read_messages(
    file: StreamFile | None, first: int, last: int, limit: int, most_bytes: int, chunk_bytes: int
) -> tuple[list[StoredMessage], bool]:
    """Return messages by rising seq, up to about `chunk_bytes` of them, and whether there may be more."""
    if file is None:
        return [], False
    found: list[StoredMessage] = []
    room, step = chunk_bytes, _FIRST_ROWS
    while first <= last and len(found) < limit:
        begin, rows = _block(file, first, last, limit - len(found), most_bytes)
        if rows:
            first = rows[-1][0] + 1
        else:  # what comes before it are rows
            step = min(limit - len(found), step)
            query = f"{MESSAGES} WHERE seq BETWEEN ?2 AND ?3 ORDER BY seq LIMIT ?4"
            rows = file.rows(query, (most_bytes, first, begin - 1, step))
            first = rows[-1][0] + 1 if len(rows) == step else begin
        room = take_messages(rows, found, room)
        if room <= 0:
            return found, True
        cost = max(1, (chunk_bytes - room) // max(1, len(found)))  # of a message so far
        step = min(_MOST_ROWS, max(_FIRST_ROWS, room // cost + 1))
    return found, False


def _block(file: StreamFile, first: int, last: int, limit: int, most_bytes: int) -> tuple[int, list[Any]]:
    """Return where the next block begins, and messages of it if it has the first of the range."""
    if file.has("blocks"):
        with file.held() as connection:
            block = blocks.next_block(connection, first, last)
            if block is not None and block[0] <= first:
                return first, block_messages(block, first, min(last, first + limit - 1), most_bytes)
            if block is not None:
                return int(block[0]), []
    return last + 1, []


def first_seq(file: StreamFile) -> int:
    """Return the lowest seq, or 0 if there is none."""
    tables_of = ["SELECT min(seq) AS seq FROM messages"]
    if file.has("blocks"):
        tables_of.append("SELECT min(first) FROM blocks")
    return int(file.rows(f"SELECT coalesce(min(seq), 0) FROM ({' UNION ALL '.join(tables_of)})")[0][0])


def measure_messages(file: StreamFile, first: int = 0, last: int = MOST_SEQ) -> tuple[int, int]:
    """Return how many messages there are in a range of seqs, and the bytes that they count."""
    query = f"SELECT count(*), coalesce(sum({tables.SIZE}), 0) FROM messages WHERE seq BETWEEN ? AND ?"
    count, size = file.rows(query, (first, last))[0]
    if file.has("blocks"):
        with file.held() as connection:
            more, more_bytes = blocks.measure(connection, first, last)
        count, size = count + more, size + more_bytes
    return count, size


def count_messages(file: StreamFile, first: int = 0) -> int:
    """Return how many messages there are from a seq on."""
    count = int(file.rows("SELECT count(*) FROM messages WHERE seq >= ?", (first,))[0][0])
    if file.has("blocks"):
        with file.held() as connection:
            count += blocks.measure(connection, first, MOST_SEQ)[0]
    return count


def sizes_of_messages(file: StreamFile, after: int, limit: int) -> list[tuple[int, int]]:
    """Return (seq, bytes) of the first messages behind a seq."""
    query = f"SELECT seq, {tables.SIZE} FROM messages WHERE seq > ? ORDER BY seq LIMIT ?"
    rows: list[tuple[int, int]] = file.rows(query, (after, limit))
    if file.has("blocks"):
        with file.held() as connection:
            rows = sorted(rows + blocks.sizes(connection, after, limit))[:limit]
    return rows


def open_old_blocks(file: StreamFile, before_us: int, limit: int) -> int | None:
    """Make rows of the blocks of which something was written by a time; return of what time the next is, or None."""
    if not file.has("blocks"):
        return None
    with file.changed() as connection:
        return blocks.open_old(connection, before_us, limit)


def take_back_blocks(file: StreamFile, end: int) -> None:
    """Make rows of what blocks have of positions before one, as far as it is not whole, and remove the rest."""
    if file.has("blocks"):
        with file.changed() as connection:
            blocks.take_back(connection, end)
