"""Batches made of columns that a table kept."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.twins import TWINS, Twin, batch_of

from everlog.base import TopicTable, UsageError, assemble
from everlog.mqtt import Properties, Publish

MESSAGES = [
    Publish("a/b", b"one", 1, False, False, 1, Properties(content_type="x")),
    Publish("a/c", b"", 2, True, False, 2),
    Publish("a/b", b"three", 0, False, False, 0, Properties(message_expiry_interval=9)),
]


def columns(records: object, first: int = 0) -> tuple[list[int], list[object]]:
    rows = records.rows()[first:]  # type: ignore[attr-defined]
    base, start = rows[0][0], rows[0][1]
    ends, properties, payload_ends, payloads = [0], b"", [0], b""
    for row in rows:
        properties += row[4]
        payloads += row[5]
        ends.append(len(properties))
        payload_ends.append(len(payloads))
    u32 = lambda numbers: struct.pack(f"<{len(numbers)}I", *numbers)  # noqa: E731
    return [base, start], [
        u32([row[1] - start for row in rows]),
        u32([row[2] for row in rows]),
        bytes(row[3] for row in rows),
        u32(ends) if properties else None,
        properties,
        u32(payload_ends),
        payloads,
    ]


@pytest.mark.parametrize("twin", TWINS, ids=repr)
def test_the_columns_of_a_batch_make_that_batch_again(twin: Twin) -> None:
    records = batch_of(MESSAGES, twin, [5, 5, 9], 70)
    begin, rest = columns(records)
    made = twin.assemble(*begin, None, *rest, records.table)
    assert made.verify()
    assert made.rows() == records.rows()
    assert made.end_offset == records.end_offset
    checks = slice(made.layout.checks, made.layout.checks + 12)
    theirs = slice(records.layout.checks, records.layout.checks + 12)
    assert made.to_bytes()[checks] == records.to_bytes()[theirs]


@pytest.mark.parametrize("twin", TWINS, ids=repr)
def test_records_keep_offsets_that_are_not_in_a_row(twin: Twin) -> None:
    records = batch_of(MESSAGES, twin, [5, 5, 9], 70)
    begin, rest = columns(records)
    made = twin.assemble(*begin, struct.pack("<3I", 0, 5, 4_000_000_000), *rest, records.table)
    assert made.verify()
    assert [row[0] for row in made.rows()] == [70, 75, 4_000_000_070]


@given(st.data())
def test_both_twins_make_the_same_bytes(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    small = st.integers(0, 0xFFFFFFFF)
    times = sorted(data.draw(st.lists(small, min_size=count - 1, max_size=count - 1)))
    offsets = sorted(data.draw(st.sets(st.integers(1, 0xFFFFFFFF), min_size=count - 1, max_size=count - 1)))
    texts = data.draw(st.lists(st.binary(max_size=20), min_size=2 * count, max_size=2 * count))
    with_offsets, with_properties = data.draw(st.booleans()), data.draw(st.booleans())

    def ends(parts: list[bytes]) -> bytes:
        sizes = [sum(map(len, parts[:n])) for n in range(len(parts) + 1)]
        return struct.pack(f"<{len(sizes)}I", *sizes)

    made = []
    for twin in TWINS:
        table = twin.TopicTable()
        ids = [table.intern(b"t%d" % n) for n in range(count)]
        made.append(
            twin.assemble(
                data.draw(st.just(1 << 40)),
                1 << 50,
                struct.pack(f"<{count}I", 0, *offsets) if with_offsets else None,
                struct.pack(f"<{count}I", 0, *times),
                struct.pack(f"<{count}I", *ids),
                bytes(range(count)),
                ends(texts[:count]) if with_properties else None,
                b"".join(texts[:count]) if with_properties else b"",
                ends(texts[count:]),
                b"".join(texts[count:]),
                table,
            )
        )
    assert all(one.verify() for one in made)
    assert len({bytes(one.to_bytes()) for one in made}) == 1


ZERO = struct.pack("<I", 0)


@pytest.mark.parametrize("twin", TWINS, ids=repr)
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"times": b""}, "one value for each"),
        ({"flags": b"", "times": b"", "topics": b""}, "one value for each"),
        ({"topics": struct.pack("<2I", 0, 1)}, "there are 1 topics"),
        ({"times": struct.pack("<2I", 0, 0)[:8], "topics": struct.pack("<2I", 0, 9)}, "there are 1 topics"),
        ({"times": struct.pack("<2I", 3, 4)}, "first record's time"),
        ({"times": struct.pack("<2I", 0, 0), "offsets": struct.pack("<2I", 0, 0)}, "does not follow"),
        ({"offsets": ZERO}, "1 offsets for 2"),
        ({"offsets": struct.pack("<2I", 1, 2)}, "first record's offset"),
        ({"payload_ends": struct.pack("<3I", 0, 2, 1)}, "ends before it begins"),
        ({"payload_ends": struct.pack("<3I", 0, 0, 2)}, "end with its bytes"),
        ({"payload_ends": ZERO}, "1 ends for 2"),
        ({"properties": b"x"}, "nothing says whose"),
    ],
)
def test_columns_that_do_not_fit_are_refused(twin: Twin, changed: dict[str, bytes], message: str) -> None:
    table = twin.TopicTable()
    table.intern(b"only")
    values = {
        "base_offset": 0,
        "first_time": 0,
        "offsets": None,
        "times": struct.pack("<2I", 0, 1),
        "topics": struct.pack("<2I", 0, 0),
        "flags": b"\0\0",
        "property_ends": None,
        "properties": b"",
        "payload_ends": struct.pack("<3I", 0, 1, 1),
        "payloads": b"x",
        "table": table,
    } | changed
    with pytest.raises(UsageError, match=message):
        twin.assemble(*values.values())


def test_time_may_not_go_back() -> None:
    table = TopicTable()
    table.intern(b"only")
    with pytest.raises(UsageError, match="older than the one before"):
        assemble(0, 0, None, struct.pack("<3I", 0, 5, 4), bytes(12), bytes(3), None, b"", bytes(16), b"", table)
