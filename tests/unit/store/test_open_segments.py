"""Sealed segments that were read are let go of: neither their names nor their files are held beyond a limit."""

import gc
import os
from pathlib import Path

import pytest
from tests.stores import append, drain, filters, settle, small

from everlog.commitlog.segment_reader import SegmentReader
from everlog.store import LogStore, sealed_segment

SEGMENTS = 40


def readers() -> int:
    gc.collect()
    return sum(isinstance(one, SegmentReader) for one in gc.get_objects())


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("limit", "value"), [("OPEN_SEGMENTS", 3), ("OPEN_BYTES", 1)])
def test_a_filtered_read_of_many_segments_holds_only_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(sealed_segment, limit, value)
    store = LogStore.open(str(tmp_path), small(cache_bytes=0), background=False)
    for n in range(SEGMENTS):
        append(store, [(b"t/%d/%d" % (n, k), 2, b"", bytes(20)) for k in range(30)], 1_000 + n)
        settle(store)
    store.close()
    before, held = readers(), files()
    store = LogStore.open(str(tmp_path), small(cache_bytes=0), background=False)
    assert sum(one.sealed for one in store.shards[0].segments()) >= SEGMENTS - 1
    reader = store.reader(filters("t/+/7"))
    assert len(drain(reader, (0,), 1)) == SEGMENTS
    reader.release()
    assert readers() - before <= 6
    assert files() - held <= 6 * 4 + 4
    assert len(drain(store.reader(filters("t/+/8")), (0,))) == SEGMENTS, "what was let go of is opened again"
    store.close()
