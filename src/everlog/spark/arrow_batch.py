"""Arrow record batches made from rows of the log: only the columns asked for, each by one call of a kernel."""

from array import array
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import accumulate, groupby

import pyarrow as pa
import pyarrow.compute as pc

from everlog.base import (
    Piece,
    TopicTable,
    count_rows,
    expiry_column,
    filled_values,
    flag_columns,
    has_properties,
    has_publishers,
    offset_column,
    payload_column,
    property_column,
    publisher_column,
    split_publisher,
    take_lists,
    take_texts,
    text_property_column,
    time_column,
    topic_column,
    user_property_columns,
)
from everlog.spark.schema import SCHEMA

_CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION_DATA = 0x03, 0x08, 0x09  # property identifiers of MQTT 5


class Names:
    """The topic names of a table, and their levels, as columns to take from; made anew when the table has grown."""

    def __init__(self, table: TopicTable) -> None:
        self.table = table
        self.count = table.count
        self.ends = bytes(table.ends[: 4 * (self.count + 1)])
        self.data = bytes(table.names[: table.name_bytes])

    @cached_property
    def levels(self) -> tuple[bytes, bytes, bytes]:
        """Where the levels of each topic begin, where each level ends, and their bytes."""
        names = _texts(pa.string(), self.count, None, self.ends, self.data)
        lists = pc.split_pattern(names, "/")
        values = lists.values
        buffers = values.buffers()
        ends = buffers[1].to_pybytes()[: 4 * (len(values) + 1)] if buffers[1] else bytes(4)
        data = buffers[2].to_pybytes() if buffers[2] else b""
        return lists.buffers()[1].to_pybytes()[: 4 * (self.count + 1)], ends, data


class Clients:
    """The client ids of a segment's publishers as a column to take from; the one behind the last is nobody's."""

    def __init__(self, publishers: TopicTable) -> None:
        self.table = publishers
        self.count = publishers.count
        ids = [split_publisher(name)[0].encode() for name in publishers.all_names()[: self.count]]
        self.ends = array("I", accumulate(map(len, [*ids, b""]), initial=0)).tobytes()
        self.data = b"".join(ids)


class ColumnMaker:
    """Makes batches of some columns from pieces of one shard; caches the names of the last tables it met."""

    KEPT_NAMES = 8

    def __init__(self, shard: int, columns: Sequence[str]) -> None:
        self.shard = shard
        self.schema = pa.schema([SCHEMA.field(name) for name in columns])
        self._makers = [_MAKERS[name] for name in columns]
        self._names: dict[int, Names] = {}
        self._clients: dict[int, Clients] = {}
        self._same: dict[pa.Scalar, pa.Array] = {}

    def make(self, pieces: list[Piece]) -> pa.RecordBatch:
        """Return one batch of all the pieces' rows; raises OverflowError when they are too many bytes for one."""
        rows = Rows(self, pieces)
        return pa.RecordBatch.from_arrays([make(rows) for make in self._makers], schema=self.schema)

    def names(self, table: TopicTable) -> Names:
        """Return the names of a table."""
        known = self._names.get(id(table))
        if known is None or known.count != table.count:
            known = self._names[id(table)] = Names(table)
            while len(self._names) > self.KEPT_NAMES:
                del self._names[next(iter(self._names))]
        return known

    def clients(self, publishers: TopicTable) -> Clients:
        """Return the client ids of a table of publishers."""
        known = self._clients.get(id(publishers))
        if known is None or known.count != publishers.count:
            known = self._clients[id(publishers)] = Clients(publishers)
            while len(self._clients) > self.KEPT_NAMES:
                del self._clients[next(iter(self._clients))]
        return known

    def same(self, value: pa.Scalar, count: int) -> pa.Array:
        """Return a column of one value, which batches share."""
        held = self._same.get(value)
        if held is None or len(held) < count:
            held = self._same[value] = pa.repeat(value, count)
        return held[:count]


class Rows:
    """The rows of a batch to be made, with what several columns are made from."""

    def __init__(self, maker: ColumnMaker, pieces: list[Piece]) -> None:
        self.shard = pa.scalar(maker.shard, pa.int32())
        self.pieces = pieces
        self.count = count_rows(pieces)
        self._maker = maker
        self.with_properties = has_properties(pieces)

    @cached_property
    def topics(self) -> list[tuple[Names, bytes]]:
        """The topic ids, for each run of pieces with one table of names."""
        runs = (list(run) for _, run in groupby(self.pieces, key=lambda piece: id(piece[0].table)))
        return [(self._maker.names(run[0][0].table), topic_column(run, [0] * len(run))) for run in runs]

    @cached_property
    def clients(self) -> list[tuple[Clients | None, list[Piece]]]:
        """The pieces in runs with one table of names, each with the client ids of its publishers, None without any."""
        runs = (list(run) for _, run in groupby(self.pieces, key=lambda piece: id(piece[0].table)))
        return [(self._clients_of(run), run) for run in runs]

    def _clients_of(self, run: list[Piece]) -> Clients | None:
        publishers = run[0][0].table.publishers
        return self._maker.clients(publishers) if publishers is not None and has_publishers(run) else None

    @cached_property
    def flags(self) -> tuple[bytes, bytes]:
        """QoS and RETAIN."""
        return flag_columns(self.pieces)

    @cached_property
    def properties(self) -> tuple[bytes, bytes]:
        """Ends and bytes of the property sections."""
        return property_column(self.pieces)

    def same(self, value: pa.Scalar) -> pa.Array:
        """Return a column with this value in all rows."""
        return self._maker.same(value, self.count)

    def nulls(self, kind: pa.DataType) -> pa.Array:
        """Return a column of nulls."""
        return self._maker.same(pa.scalar(None, kind), self.count)


def _fixed(kind: pa.DataType, count: int, data: bytes, valid: bytes | None = None) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [_bits(valid), pa.py_buffer(data)])


def _texts(kind: pa.DataType, count: int, valid: bytes | None, ends: bytes, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [_bits(valid), pa.py_buffer(ends), pa.py_buffer(data)])


def _bits(valid: bytes | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(valid)


def _joined(parts: list[pa.Array], kind: pa.DataType) -> pa.Array:
    if not parts:
        return pa.array([], kind)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _topic(rows: Rows) -> pa.Array:
    parts = []
    for names, ids in rows.topics:
        ends, data = take_texts(ids, names.ends, names.data)
        parts.append(_texts(pa.string(), len(ids) // 4, None, ends, data))
    return _joined(parts, pa.string())


def _levels(rows: Rows) -> pa.Array:
    kind = SCHEMA.field("levels").type
    parts = []
    for names, ids in rows.topics:
        lists, ends, data = take_lists(ids, *names.levels)
        values = _texts(pa.string(), len(ends) // 4 - 1, None, ends, data)
        parts.append(pa.Array.from_buffers(kind, len(ids) // 4, [None, pa.py_buffer(lists)], children=[values]))
    return _joined(parts, kind)


def _client_id(rows: Rows) -> pa.Array:
    if all(clients is None for clients, _ in rows.clients):
        return rows.nulls(pa.string())
    parts = []
    for clients, run in rows.clients:
        if clients is None:
            parts.append(pa.nulls(count_rows(run), pa.string()))
            continue
        ends, data = take_texts(publisher_column(run, clients.count), clients.ends, clients.data)
        parts.append(_texts(pa.string(), len(ends) // 4 - 1, filled_values(ends), ends, data))
    return _joined(parts, pa.string())


def _expiry(rows: Rows) -> pa.Array:
    if not rows.with_properties:
        return rows.nulls(pa.int64())
    valid, data = expiry_column(*rows.properties)
    return _fixed(pa.int64(), rows.count, data, valid)


def _text_property(rows: Rows, identifier: int, kind: pa.DataType) -> pa.Array:
    if not rows.with_properties:
        return rows.nulls(kind)
    return _texts(kind, rows.count, *text_property_column(*rows.properties, identifier))


def _user_properties(rows: Rows) -> pa.Array:
    kind = SCHEMA.field("user_properties").type
    if not rows.with_properties:
        return rows.nulls(kind)
    valid, lists, key_ends, keys, value_ends, values = user_property_columns(*rows.properties)
    count = len(key_ends) // 4 - 1
    texts = [
        _texts(pa.string(), count, None, key_ends, keys),
        _texts(pa.string(), count, None, value_ends, values),
    ]
    entries = pa.StructArray.from_arrays(texts, fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, rows.count, [_bits(valid), pa.py_buffer(lists)], children=[entries])


def _properties(rows: Rows) -> pa.Array:
    if not rows.with_properties:
        return rows.nulls(pa.binary())
    ends, data = rows.properties
    return _texts(pa.binary(), rows.count, filled_values(ends), ends, data)


_MAKERS: dict[str, Callable[[Rows], pa.Array]] = {
    "shard": lambda rows: rows.same(rows.shard),
    "offset": lambda rows: _fixed(pa.int64(), rows.count, offset_column(rows.pieces)),
    "timestamp": lambda rows: _fixed(pa.timestamp("us", tz="UTC"), rows.count, time_column(rows.pieces)),
    "topic": _topic,
    "levels": _levels,
    "qos": lambda rows: _fixed(pa.int8(), rows.count, rows.flags[0]),
    "retain": lambda rows: _fixed(pa.bool_(), rows.count, rows.flags[1]),
    "expiry": _expiry,
    "content_type": partial(_text_property, identifier=_CONTENT_TYPE, kind=pa.string()),
    "response_topic": partial(_text_property, identifier=_RESPONSE_TOPIC, kind=pa.string()),
    "correlation_data": partial(_text_property, identifier=_CORRELATION_DATA, kind=pa.binary()),
    "user_properties": _user_properties,
    "client_id": _client_id,
    "properties": _properties,
    "payload": lambda rows: _texts(pa.binary(), rows.count, None, *payload_column(rows.pieces)),
}
