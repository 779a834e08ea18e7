"""The window of messages under way; `tests/properties/test_window.py` has the rest."""

import pytest
from tests.twins import TWINS, batch_of

from everlog.base import AckRun, PeerError, UsageError
from everlog.mqtt import Publish, PublishWriter
from everlog.sessions import RELEASED, Window


@pytest.mark.parametrize("limit", [0, -1, 65_536])
def test_a_limit_that_no_window_can_have_is_refused(limit):
    with pytest.raises(UsageError):
        Window(limit)


def sent(window, count, qos=1, shard=0):
    records = batch_of([Publish("t", b"", 2, packet_id=1)] * count)
    writer = PublishWriter(4)
    room = window.room()
    first = window.next_id
    writer.write(records, None, 0, count, qos, first, 0, False, room)
    window.sent(writer, records, None, 0, shard)
    return [(first - 1 + k) % 65_535 + 1 for k in range(writer.ids_used)]


def acked(window, kind, *ids, reason=0):
    return window.acked(AckRun(kind, b"".join(one.to_bytes(2, "little") for one in ids), bytes([reason]) * len(ids)))


def test_ids_go_up_and_round():
    window = Window(10)
    window.restore([], 65_534)
    assert sent(window, 4) == [65_534, 65_535, 1, 2]


def test_the_exchange_of_a_qos_2_message():
    window = Window(10)
    (one,) = sent(window, 1, 2)
    assert window.state(one) == 2
    for wrong in (4, 7):
        with pytest.raises(PeerError):
            acked(window, wrong, one)
    assert acked(window, 5, one) == one.to_bytes(2, "little")
    assert window.state(one) == 3
    assert acked(window, 7, one) == b""
    assert (window.state(one), window.inflight) == (0, 0)


def test_a_message_that_is_never_acknowledged_is_set_aside_and_its_id_passed_over():
    window = Window(2)
    (stuck,) = sent(window, 1)
    used = []
    for _ in range(65_600):
        (one,) = sent(window, 1)
        used.append(one)
        acked(window, 4, one)
    assert stuck in window.parked
    assert stuck not in used
    assert window.span <= 32
    assert window.pending() == [(stuck, 1, 0)]


def test_what_was_under_way_before_keeps_its_order_whatever_its_shard():
    window = Window(10)
    pending = [(7, 1, 3 << 56 | 1), (8, 2, 1), (9, 1, 2 << 56)]
    window.restore(pending, 10)
    sent(window, 1)
    assert window.pending()[:3] == pending
    assert window.packed()[:11] == b"\x07\x00\x01" + (3 << 56 | 1).to_bytes(8, "little")


def test_a_lower_limit_counts_when_there_is_room_again():
    window = Window(10)
    ids = sent(window, 8)
    window.limit = 3
    assert window.room() == 0
    acked(window, 4, *ids[:6])
    assert window.room() == 1


def test_only_a_qos_2_message_that_was_sent_can_be_released():
    for parked in (False, True):
        window = Window(100)
        ids = [*sent(window, 1, 1), *sent(window, 2, 2)]
        if parked:
            window.restore(window.pending(), window.next_id)
        window.release(ids[0])
        window.release(ids[1])
        window.release(ids[1])
        window.release(99)
        assert [state for _, state, _ in window.pending()] == [1, RELEASED, 2]
        assert window.inflight == 3


def test_forgetting_what_is_not_there_changes_nothing():
    window = Window(10)
    ids = sent(window, 3)
    window.forget(99)
    window.forget(ids[1])
    window.forget(ids[1])
    assert [one for one, _, _ in window.pending()] == [ids[0], ids[2]]
    assert window.inflight == 2


@pytest.mark.parametrize("twin", TWINS)
def test_ids_under_way_are_known(twin):
    window = twin.Window(10)
    window.take_back(7, 2, 0)
    column = b"\x07\x00\x08\x00\x07\x00"
    assert window.known(column) == b"\x01\x00\x01"
    assert window.acked(twin.AckRun(5, column, bytes(3))) == column  # a PUBREC is always answered
    assert window.unknown == 1
    assert window.acked(twin.AckRun(7, column, bytes(3))) == b""
    assert window.known(column) == bytes(3)


@pytest.mark.parametrize("twin", TWINS)
def test_released_ids_are_told_from_unknown_ones(twin):
    bits = bytearray(8192)
    bits[0] = 0b0000_0110
    received = twin.ReceivedIds(bits)
    assert received.release(b"\x01\x00\x01\x00\x03\x00\x02\x00") == b"\x01\x00\x00\x01"
    assert received.release(b"\x02\x00") == b"\x00"
