"""The SQLite file: what is refused, what a crash leaves; and sessions to and from what is stored."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.base import NOT_KEPT, AckRun, StorageError, pack_position
from everlog.mqtt import Properties, Will
from everlog.sessions import (
    LIVE,
    RELEASED,
    Changes,
    Cursor,
    GroupCursor,
    GroupRow,
    Owed,
    RetainedRow,
    Session,
    SessionRow,
    SqliteTables,
    StoredSession,
    Subscribed,
    WillRow,
    Window,
    cursor_of,
    group_row,
    pack_session,
    restored,
    row_format,
    settle,
    settle_group,
    stored,
    unpack_session,
)
from everlog.sessions.received_ids import ID_SET_BYTES

OFFSETS = st.integers(0, (1 << 56) - 1)
IDS = st.integers(1, 0xFFFF)

WITHOUT_JOURNAL = "ALTER TABLE broker DROP COLUMN journal;"
WITHOUT_WILLS = f"{WITHOUT_JOURNAL} DROP TABLE wills;"
WITHOUT_NAMES = f"""{WITHOUT_WILLS} DROP TABLE retained_names; ALTER TABLE retained DROP COLUMN after;
    ALTER TABLE broker DROP COLUMN retained;"""
WITHOUT_FEEDS = f"{WITHOUT_NAMES} ALTER TABLE cursors DROP COLUMN feeds;"


def filled(path: Path, **changes: object) -> None:
    tables = SqliteTables(path)
    tables.apply(Changes(rows=(SessionRow("anne"),), **changes), durable=True)  # type: ignore[arg-type]
    tables.close()


def names(path: Path) -> list[str]:
    tables = SqliteTables(path)
    found = [one.row.client_id for one in tables.load().sessions]
    tables.close()
    return found


def test_a_file_of_the_first_version_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    tables = SqliteTables(path)
    tables.apply(
        Changes(rows=(SessionRow("anne"),), retained=(RetainedRow("t", b"1"),), routed=(5,), alive_us=9), durable=True
    )
    tables.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"DROP TABLE shared_groups; {WITHOUT_FEEDS} PRAGMA user_version = 1;")
    tables = SqliteTables(path)
    found = tables.load()
    assert [one.row.client_id for one in found.sessions] == ["anne"]
    assert (list(found.retained), list(found.groups), found.routed) == ([RetainedRow("t", b"1")], [], (5,))
    tables.apply(Changes(groups=(GroupRow("g", "t"),)), durable=True)
    tables.close()
    again = SqliteTables(path)
    assert list(again.load().groups) == [GroupRow("g", "t")]
    again.close()


def test_a_file_of_the_fourth_version_has_no_wills_of_clean_sessions(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    filled(path, retained_at=(9,))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"{WITHOUT_WILLS} PRAGMA user_version = 4;")
    tables = SqliteTables(path)
    found = tables.load()
    assert (list(found.wills), found.retained_at) == ([], (9,))
    tables.apply(Changes(wills=(WillRow("anne", None, b"will"),)), durable=True)
    assert list(tables.load().wills) == [WillRow("anne", None, b"will")]
    tables.close()


def test_a_file_of_the_third_version_has_all_retained_messages(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    filled(path, retained=(RetainedRow("t", b"1"),), retained_at=(9,))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"{WITHOUT_NAMES} PRAGMA user_version = 3;")
    tables = SqliteTables(path)
    found = tables.load()
    assert (list(found.retained), found.retained_at) == ([RetainedRow("t", b"1")], ())
    tables.close()


def test_a_file_of_the_second_version_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    tables = SqliteTables(path)
    tables.apply(Changes(rows=(SessionRow("anne"),), cursors=(("anne", Cursor(next_id=7)),)), durable=True)
    tables.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"{WITHOUT_FEEDS} PRAGMA user_version = 2;")
    tables = SqliteTables(path)
    assert [one.cursor for one in tables.load().sessions] == [Cursor(next_id=7)]
    tables.apply(Changes(cursors=(("anne", Cursor(next_id=8, feeds=b"f")),)), durable=True)
    tables.close()
    again = SqliteTables(path)
    assert [one.cursor for one in again.load().sessions] == [Cursor(next_id=8, feeds=b"f")]
    again.close()


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    filled(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match="version 7") as error:
        SqliteTables(path)
    assert error.value.hint
    assert path.read_bytes() == before


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    with pytest.raises(StorageError, match="not a session file") as error:
        SqliteTables(path)
    assert error.value.hint


def test_garbage_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"this is not a database, whatever its name says" * 100)
    with pytest.raises(StorageError, match="damaged") as error:
        SqliteTables(path)
    assert error.value.hint
    assert path.read_bytes().startswith(b"this is not")


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.9])
def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path, cut: float) -> None:
    path = tmp_path / "s.db"
    rows = tuple(SessionRow(f"client {number}", "x" * 50) for number in range(2_000))
    tables = SqliteTables(path)
    tables.apply(Changes(rows=rows), durable=True)
    tables.close()
    data = bytearray(path.read_bytes())
    middle = int(cut * len(data)) // 4096 * 4096
    data[middle : middle + 4096] = b"\xa5" * 4096
    path.write_bytes(data)
    with pytest.raises(StorageError, match="damaged") as error:
        names(path)
    assert error.value.hint
    assert path.read_bytes() == data


def test_a_folder_that_is_not_there_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as error:
        SqliteTables(tmp_path / "nowhere" / "s.db")
    assert error.value.hint


def test_what_was_applied_survives_a_process_that_never_closes(tmp_path: Path) -> None:
    tables = SqliteTables(tmp_path / "s.db")
    tables.apply(Changes(rows=(SessionRow("durable"),)), durable=True)
    tables.apply(Changes(rows=(SessionRow("behind"),)))
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"s.db{suffix}", tmp_path / f"copy.db{suffix}")
    assert names(tmp_path / "copy.db") == ["behind", "durable"]
    tables.close()


def test_a_batch_that_fails_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path / "s.db")
    tables = SqliteTables(tmp_path / "s.db")
    bad = Changes(ended=("anne",), rows=(SessionRow("bert"), SessionRow("carl", expiry_s=None)))  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        tables.apply(bad)
    assert [one.row.client_id for one in tables.load().sessions] == ["anne"]
    tables.apply(Changes(rows=(SessionRow("dora"),)))
    tables.close()
    assert names(tmp_path / "s.db") == ["anne", "dora"]


@given(st.sets(IDS))
def test_id_sets_come_back(ids: set[int]) -> None:
    bits = bytearray(ID_SET_BYTES)
    for packet_id in ids:
        bits[packet_id >> 3] |= 1 << (packet_id & 7)
    assert row_format.unpack_ids(row_format.pack_ids(bits)) == bits


@given(st.lists(st.tuples(IDS, st.integers(1, 3), st.integers(0, (1 << 64) - 1)), unique_by=lambda one: one[0]))
def test_a_window_comes_back(pending: list[tuple[int, int, int]]) -> None:
    window = Window(0xFFFF)
    window.restore(pending, 7)
    assert row_format.unpack_inflight(window.packed()) == window.pending()
    assert row_format.pack_inflight(window.pending()) == window.packed()


@given(st.lists(st.tuples(st.integers(0, 255), OFFSETS, st.binary(max_size=9))))
def test_unsure_ids_come_back(entries: list[tuple[int, int, bytes]]) -> None:
    assert row_format.unpack_unsure(row_format.pack_unsure(entries)) == entries


@pytest.mark.parametrize("damaged", [b"\x00\x00\x09\x00ab", b"\xff\xff\x02\x00ab"])
def test_a_set_that_does_not_fit_is_refused(damaged: bytes) -> None:
    with pytest.raises(StorageError):
        row_format.unpack_ids(damaged)


def a_session() -> Session:
    session = Session(
        "anne",
        5,
        60,
        queue_bytes=99,
        user="u",
        kept=True,
        away_us=12,
        will=Will("gone", b"x", 2, True, Properties(will_delay_interval=3, content_type="t")),
        subscriptions={"a/+": Subscribed("a/+", 2, True, True, 2, 77, (1, 2), True), "b": Subscribed("b", 0)},
        lag={0: 10, 1: 20},
        doubt={1: 25},
        unsure=[(1, 30, b"\x28\x00")],
    )
    received = bytearray(ID_SET_BYTES)
    received[5] = 0x81
    session.restore_ids([(3, 1, 5), (9, RELEASED, 1 << 56 | 6)], 10, received)
    return session


def test_a_session_comes_back_from_what_is_stored() -> None:
    session = a_session()
    found = stored(session, [10, 20])
    again = restored(unpack_session(pack_session(found)), 99)
    assert stored(again, [10, 20]) == found
    assert again.will == session.will
    assert again.subscriptions == session.subscriptions
    assert (again.lag, again.doubt, again.unsure) == (session.lag, session.doubt, session.unsure)
    assert again.pending() == session.pending()
    assert again.received_bits == session.received_bits != bytearray(ID_SET_BYTES)
    assert again.next_id == 10
    assert again.kept


def test_a_message_in_no_log_is_not_sent_again_but_its_release_is_repeated() -> None:
    session = a_session()
    unkept = pack_position(NOT_KEPT, 0)
    session.restore_ids([(1, 1, unkept), (2, RELEASED, unkept), (3, 2, unkept), (4, 2, 9)], 5, None)
    again = restored(stored(session, [10, 20]), 99)
    assert [(packet_id, state) for packet_id, state, _ in again.pending()] == [(2, RELEASED), (3, RELEASED), (4, 2)]


def test_an_id_whose_message_is_committed_needs_no_proof_any_more() -> None:
    session = a_session()
    session.drop_confirmed([0, 29])
    assert row_format.unpack_unsure(cursor_of(session, [0, 29]).unsure) == [(1, 30, b"\x28\x00")]
    session.drop_confirmed([0, 30])
    assert not cursor_of(session, [0, 30]).unsure


def live(*positions: int, **fields: bytes) -> StoredSession:
    return StoredSession(SessionRow("anne", expiry_s=60), (), Cursor(row_format.pack_offsets(positions), **fields))  # type: ignore[arg-type]


def test_who_was_connected_left_when_the_broker_last_wrote() -> None:
    found = settle(live(LIVE, 4), (9, 8), 1234, [20, 20])
    assert found.row.away_us == 1234
    assert row_format.unpack_offsets(found.cursor.positions) == (9, 4)
    assert row_format.unpack_offsets(found.cursor.doubt) == (20, 20)


def test_positions_never_lie_behind_the_end_of_the_log() -> None:
    inflight = row_format.pack_inflight([(1, 1, 5), (2, 1, 15), (3, RELEASED, 16), (4, 2, 6), (5, 2, 17)])
    found = settle(live(18, inflight=inflight), (18,), 1, [10])
    assert row_format.unpack_offsets(found.cursor.positions) == (10,)
    left = [(packet_id, state) for packet_id, state, _ in row_format.unpack_inflight(found.cursor.inflight)]
    assert left == [(1, 1), (3, RELEASED), (4, 2), (5, RELEASED)], "a client that has 5 is told to forget its id"


def test_a_shard_that_nothing_is_known_of_is_read_from_its_beginning() -> None:
    assert row_format.unpack_offsets(settle(live(LIVE), (5,), 1, [10, 10]).cursor.positions) == (5, 0)


def test_an_id_counts_only_if_its_message_is_in_the_log() -> None:
    bits = bytearray(ID_SET_BYTES)
    bits[0] = 0b110
    unsure = row_format.pack_unsure([(0, 10, b"\x01\x00"), (0, 11, b"\x02\x00")])
    found = settle(live(LIVE, received=row_format.pack_ids(bits), unsure=unsure), (5,), 1, [10])
    assert row_format.unpack_ids(found.cursor.received)[0] == 0b010
    assert not found.cursor.unsure


def test_a_session_that_was_away_is_left_as_it_is() -> None:
    away = StoredSession(SessionRow("anne", away_us=5), (), Cursor(row_format.pack_offsets((3,))))
    assert settle(away, (9,), 99, [20]) is away


def test_acks_in_any_order_leave_the_rest_packed() -> None:
    window = Window(100)
    window.restore([(number, 1, number) for number in range(1, 11)], 11)
    window.acked(AckRun(4, b"".join(number.to_bytes(2, "little") for number in (3, 9, 1)), bytes(3)))
    assert [entry[0] for entry in row_format.unpack_inflight(window.packed())] == [2, 4, 5, 6, 7, 8, 10]


def stored_group(positions: tuple[int, ...], *, served: bool, doubt: tuple[int, ...] = ()) -> GroupRow:
    cursor = GroupCursor(100, ordered=True)
    cursor.dealt("anne", [3, 1 << 56 | 9], 65_535, 0.0)
    cursor.dealt("bert", [4], 7, 0.0, stays=True)
    cursor.dealt("bert", [5], 8, 0.0)
    cursor.left("bert")
    return group_row("g", "t/#", cursor, positions, doubt, served)


def test_a_group_owes_after_a_start_what_was_in_flight_but_not_what_stays_with_a_session() -> None:
    row, owed = settle_group(stored_group((20, LIVE), served=True), (15, 16), (30, 31))
    assert dict(owed) == {3: Owed("anne", 65_535, 1), 1 << 56 | 9: Owed("anne", 1, 1), 5: Owed("bert", 8, 1)}
    assert row_format.unpack_offsets(row.positions) == (20, 16)
    assert row_format.unpack_offsets(row.doubt) == (30, 31)
    assert settle_group(row, (99, 99), (30, 31)) == (row, owed)


def test_a_group_that_nobody_served_keeps_its_doubt() -> None:
    row, _ = settle_group(stored_group((20, 21), served=False, doubt=(3, 0)), (15, 16), (30, 31))
    assert row_format.unpack_offsets(row.doubt) == (3, 0)


def test_a_group_trusts_nothing_that_the_log_does_not_have() -> None:
    row, owed = settle_group(stored_group((20, LIVE), served=False), (15,), (4,))
    assert row_format.unpack_offsets(row.positions) == (4,)
    assert [position for position, _ in owed] == [3]


@pytest.mark.parametrize(
    "packed", [b"\x01", b"\x01\x00\x05\x00ab", b"\x01\x00\x01\x00a" + bytes(13), b"\x00\x00" + bytes(14)]
)
def test_what_a_group_owes_is_refused_when_it_is_no_such_thing(packed: bytes) -> None:
    with pytest.raises(StorageError):
        row_format.unpack_owed(packed)
