"""Publishers of a log's records: there after a restart, a seal, thinning, a failed write and beside the writer."""

import errno
import struct
from random import Random

import pytest
from tests.shard_logs import DIRECTORY, columns_of, numbered, opened, small
from tests.simulated_disk import SimulatedDisk

from everlog.base import NO_PUBLISHER, PublisherName, TopicTable, split_publisher
from everlog.commitlog import LogSettings, ShardLog, verify_directory
from everlog.commitlog.paths import segment_bases, segment_path, side_path
from everlog.commitlog.side_file import PUBLISHERS

Said = tuple[bytes, str | None, int]  # payload, client id, packet id
CLIENTS = [PublisherName(b"client %d\0user" % n, keeps_ids=n == 2) for n in range(4)]


def commit(log: ShardLog, count: int, who: PublisherName | None, first: int = 0, qos: int = 2, now_us: int = 1) -> None:
    """Commit messages of one connection, whose packet ids are their numbers and one."""
    table = TopicTable()
    columns = columns_of(numbered(count, first, topics=1), table)
    for n in range(count):
        columns.flags[n] = qos << 1
        struct.pack_into("<H", columns.packet_ids, 2 * n, first + n + 1)
    log.append(columns, 0, count, now_us, table, publisher=who)
    log.commit_step()


def said(log: ShardLog) -> list[Said]:
    found: list[Said] = []
    offset = log.start
    while batches := log.read(offset, 1500):
        for records in batches:
            for k in range(len(records)):
                who, publishers = records.publisher(k), records.table.publishers
                name = None if who == NO_PUBLISHER else split_publisher(publishers.name(who))[0]
                found.append((records.row(k)[5], name, records.packet_id(k)))
        offset = batches[-1].end_offset
    return found


def filled(settings: LogSettings, batches: int = 24) -> tuple[SimulatedDisk, ShardLog, list[Said]]:
    """Return a log of many small batches, some of them without publishers, and what it must say."""
    disk = SimulatedDisk(Random(1))
    log, expected = opened(disk, settings), []
    for n in range(batches):
        who = None if n % 5 == 0 else CLIENTS[n % 4]
        commit(log, 2, who, 2 * n, now_us=n + 1)
        client = None if who is None else f"client {n % 4}"
        for k in (2 * n, 2 * n + 1):
            expected.append((b"payload %d" % k, client, k + 1 if client == "client 2" else 0))
    return disk, log, expected


def test_a_log_says_who_published_after_a_restart_and_beside_its_writer() -> None:
    disk, log, expected = filled(small(segment_bytes=2500))
    follower = ShardLog.open(disk, DIRECTORY, writable=False)
    assert said(follower) == said(log) == expected
    log.close()
    for _ in range(2):
        log = opened(disk, small(segment_bytes=2500))
        assert said(log) == expected
        number = len(expected)
        commit(log, 1, CLIENTS[1], number)
        commit(log, 1, None, number + 1)
        expected += [(b"payload %d" % number, "client 1", 0), (b"payload %d" % (number + 1), None, 0)]
        assert said(log) == expected
        follower.refresh()
        assert said(follower) == expected
        log.close()
    assert verify_directory(disk, DIRECTORY).damage == ()


@pytest.mark.parametrize("kept", [True, False])
def test_sealed_and_merged_segments_say_it_with_and_without_their_side_files(kept: bool) -> None:
    settings = small(segment_bytes=1500, merge_below=1000)
    disk, log, expected = filled(settings)
    while log.seal_step():
        pass
    assert log.statistics().merges > 1
    assert said(log) == expected
    log.close()
    for base in segment_bases(disk.list(DIRECTORY))[:-1]:
        assert PUBLISHERS.encode() in disk.files()[side_path(DIRECTORY, base)][:512]
        if not kept:
            disk.unlink(side_path(DIRECTORY, base))
    log = opened(disk, settings)
    assert said(log) == expected
    log.repair()
    assert said(log) == expected


def test_a_segment_that_goes_on_after_a_restart_names_each_publisher_once() -> None:
    disk, log, expected = filled(small(segment_bytes=1 << 20), 8)
    log.close()
    log = opened(disk, small(segment_bytes=1 << 20))
    for n in range(4):
        commit(log, 1, PublisherName(b"client %d\0user" % n), 100 + n)
    (view,) = log.segments()
    names = [name for records in view.read(0, len(view.batches())) for name in records.new_publishers()]
    assert sorted(names) == [b"client %d\0user" % n for n in range(4)]
    assert said(log)[:-4] == expected


def test_what_is_written_again_in_a_new_segment_names_its_publishers_there() -> None:
    disk, log, expected = filled(small(segment_bytes=1 << 20), 6)
    disk.fault = lambda what, path: errno.EIO if what == "sync" and path.endswith(".log") else None
    commit(log, 2, CLIENTS[1], 12)
    disk.fault = lambda what, path: None
    log.commit_step()
    commit(log, 2, CLIENTS[2], 14)
    expected += [(b"payload %d" % k, f"client {1 + k // 14}", k + 1 if k >= 14 else 0) for k in range(12, 16)]
    assert said(log) == expected
    _, second = log.segments()
    names = [name for records in second.read(0, 2) for name in records.new_publishers()]
    assert sorted(names) == sorted(one.name for one in CLIENTS)
    log.close()
    assert said(opened(disk)) == expected


def test_publishers_whose_names_are_lost_are_nobody_and_lose_no_record() -> None:
    disk, log, expected = filled(small(segment_bytes=1 << 20), 12)
    log.close()
    path = segment_path(DIRECTORY, 0)
    data = disk.files()[path]
    disk.unlink(side_path(DIRECTORY, 0))
    disk.open(path, write=True).write_at(data.index(b"client 1\0user"), [b"x"])  # named in the second batch
    log = opened(disk)
    readable = expected[:2] + expected[4:]
    assert said(log) == [(row[0], "" if row[1] == "client 1" else row[1], row[2]) for row in readable]
    assert any(row[1] == "client 1" for row in readable)
    commit(log, 1, CLIENTS[1], 24)
    assert said(log)[-1][1] == "client 1"
