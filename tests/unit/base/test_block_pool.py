"""Blocks of a pool: bounded, used again once nobody reads them and no earlier, begun at the place of a page."""

import ctypes
from random import Random

import pytest
from tests.messages import EXPIRY
from tests.shard_logs import columns_of
from tests.twins import TWINS, Twin, needs_compiled

from everlog.base import BlockPool, RecordBuilder, Records, TopicTable

PAGE = 4096


@pytest.fixture(params=TWINS, ids=repr)
def pool(request: pytest.FixtureRequest) -> BlockPool:
    return request.param.BlockPool(10_000, 3, 100)  # type: ignore[no-any-return]


def test_a_block_is_used_again_once_nobody_refers_to_it(pool: BlockPool) -> None:
    first = pool.take(5000)
    second = pool.take(5000)
    assert first is not second
    number, first = id(first), bytearray()
    assert id(pool.take(5000)) == number
    assert pool.held_bytes == 2 * len(second)


def test_a_view_of_a_part_holds_the_block(pool: BlockPool) -> None:
    block = pool.take(5000)
    view, number, block = memoryview(block)[100:200], id(block), bytearray()
    assert id(pool.take(5000)) != number
    del view
    assert number in [id(pool.take(5000)) for _ in range(3)]


def test_no_more_blocks_are_kept_than_it_may_have(pool: BlockPool) -> None:
    taken = [pool.take(5000) for _ in range(10)]
    assert len({id(block) for block in taken}) == 10
    assert pool.held_bytes == 3 * len(taken[0])


def test_a_larger_block_is_used_once(pool: BlockPool) -> None:
    assert len(pool.take(50_000)) >= 50_000
    assert pool.held_bytes == 0


def test_free_blocks_go_when_only_small_batches_come(pool: BlockPool) -> None:
    held = pool.take(5000)
    pool.take(5000)
    for _ in range(1000):
        pool.made_small()
    assert pool.held_bytes == len(held)


@pytest.mark.parametrize("twin", TWINS, ids=repr)
@pytest.mark.parametrize("seed", range(20))
def test_batches_are_the_same_with_a_pool_and_stay_what_they_are(twin: Twin, seed: int) -> None:
    random = Random(seed)
    pool = twin.BlockPool(random.choice((2000, 20_000)), 3, random.choice((1, 500)), 32)
    builder, plain, table = twin.RecordBuilder(True, pool), twin.RecordBuilder(), twin.TopicTable(3)
    held: list[tuple[Records, Records]] = []  # some are let go, so that their blocks are used again
    offset, base = 0, 0
    for n in range(150):
        messages = [
            (b"t/%d" % random.randrange(30), random.randbytes(random.choice((0, 9, 700, 3000))))
            for _ in range(random.randrange(1, 4))
        ]
        properties = random.choice((b"", EXPIRY))
        columns = columns_of(messages, table, properties)
        if len(builder) and not builder.has_room(columns, 0, len(messages)):
            held.append((builder.take(offset), plain.take(offset)))
            offset = base
        for one in (builder, plain):
            one.append(columns, 0, len(messages), 1000 + n, table)
        base += len(messages)
        if random.random() < 0.4:
            rows = random.randrange(len(builder)) + 1
            held.append((builder.take(offset, rows), plain.take(offset, rows)))
            offset += rows
        if random.random() < 0.3:
            held = random.sample(held, len(held) // 2)
        for ours, theirs in held:
            assert ours.verify()
            assert bytes(ours.view()) == ours.to_bytes() == bytes(theirs.to_bytes())
    assert pool.held_bytes <= 3 * pool.block_bytes
    assert len(builder) == len(plain)


@needs_compiled
def test_a_batch_begins_where_its_page_of_the_file_does() -> None:
    pool = BlockPool(100_000, 3, 100, 32)
    builder, table = RecordBuilder(True, pool), TopicTable()
    builder.place = place = 12_345 * 8
    for n in range(20):
        builder.append(columns_of([(b"t", bytes(9000 + 8 * n))], table), 0, 1, n + 1, table)
        if n % 5 == 0:
            builder.append(columns_of([(b"t", bytes(500))], table), 0, 1, n + 1, table)
        records = builder.take(n, 1)
        assert isinstance(records.data, bytearray)
        address = ctypes.addressof(ctypes.c_char.from_buffer(records.data)) + records.start
        if n and n % 5:
            assert address % PAGE == place % PAGE
        place += records.size + 32
        if len(builder):
            place += builder.take(n).size + 32
