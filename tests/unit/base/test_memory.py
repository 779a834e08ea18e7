"""The primitives that Python does by slices and C by `memcpy`, and the C functions that stand in for them.

The inline C of `memory.pxd` has no door of its own. What needs one to be tested at its edges (CRC-32C without the
processor's instruction, the UTF-8 check) is cut out of the file and compiled here.
"""

import ctypes
import os
import random
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c
import pytest

from everlog.base import memory

PXD = Path(memory.__file__).with_suffix(".pxd")
COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")

# Beginnings of every kind of UTF-8 sequence, right and wrong, to be combined.
PIECES = [
    *(bytes((byte,)) for byte in (0x01, 0x41, 0x7F, 0x80, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4)),
    *(bytes((byte,)) for byte in (0xF5, 0xF8, 0xFE, 0xFF)),
    *(text.encode() for text in ("é", "߿", "ࠀ", "퟿", "\ue000", "\uffff", "𐀀", "\U0010ffff")),
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xe0\x9f\xbf",
    b"\xf0\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"\xc2\x41",
    b"\xe1\x80\x41",
    b"\xf1\x80\x80\x41",
    b"\xf1\x41\x80\x80",
    b"\x00",
]


def well_formed(data: bytes) -> bool:
    try:
        return "\0" not in data.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return False


@pytest.fixture(scope="module")
def inline_c(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The functions of the C block in memory.pxd, as a library."""
    if COMPILER is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("inline")
    block = PXD.read_text().split('"""')[1]
    doors = """
    uint32_t crc_soft(const unsigned char *p, Py_ssize_t n, uint32_t c) { return everlog_crc_soft(p, n, c); }
    uint32_t crc_best(const unsigned char *p, Py_ssize_t n, uint32_t c) { return everlog_crc(p, n, c); }
    uint32_t hash_of(const unsigned char *p, Py_ssize_t n, uint64_t seed) { return everlog_hash(p, n, seed); }
    int text_ok(const unsigned char *p, Py_ssize_t n) { return everlog_text(p, n); }
    """
    source = folder / "inline.c"
    source.write_text("#include <Python.h>\n" + block + doors)
    target = folder / "inline.so"
    include = sysconfig.get_path("include")
    subprocess.run([*COMPILER.split(), "-O2", "-shared", "-fPIC", f"-I{include}", source, "-o", target], check=True)
    library = ctypes.CDLL(str(target))
    for name, last in (("crc_soft", ctypes.c_uint32), ("crc_best", ctypes.c_uint32), ("hash_of", ctypes.c_uint64)):
        function = getattr(library, name)
        function.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t, last]
        function.restype = ctypes.c_uint32
    library.text_ok.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]
    return library


@pytest.mark.parametrize("name", ["crc_soft", "crc_best"])
def test_check_in_c_is_crc_32c_with_and_without_the_processors_help(inline_c: Any, name: str) -> None:
    check: Callable[[bytes, int, int], int] = getattr(inline_c, name)
    assert check(b"123456789", 9, 0) == 0xE3069283  # the algorithm's check value
    chance = random.Random(1)
    for size in [*range(70), 1000, 3071, 3072, 3073, 4096, 6144, 6149, 100_000]:
        data = chance.randbytes(size)
        assert check(data, size, 0) == crc32c.crc32c(data)
        cut = chance.randint(0, size)
        assert check(data[cut:], size - cut, check(data[:cut], cut, 0)) == crc32c.crc32c(data)


def test_text_check_in_c_agrees_with_pythons_decoder(inline_c: Any) -> None:
    for one in PIECES:
        for other in [b"", *PIECES]:
            for data in (one + other, b"abc" + one + other, one + other + b"z"):
                assert bool(inline_c.text_ok(data, len(data))) == well_formed(data), data
    for pair in range(1 << 16):
        data = b"a" + pair.to_bytes(2, "big")
        assert bool(inline_c.text_ok(data, 3)) == well_formed(data), data


def test_text_check_in_c_does_not_read_behind_its_range(inline_c: Any) -> None:
    for whole in ("é", "ࠀ", "𐀀"):
        data = whole.encode()
        for size in range(1, len(data)):
            assert not inline_c.text_ok(data, size)


def test_hash_in_c_depends_on_every_byte_the_length_and_the_seed(inline_c: Any) -> None:
    for size in range(1, 70):
        data = bytes(range(size))
        codes = {inline_c.hash_of(data, size, 5), inline_c.hash_of(data, size, 6), inline_c.hash_of(data, size - 1, 5)}
        for at in range(size):
            changed = data[:at] + bytes((data[at] ^ 0x80,)) + data[at + 1 :]
            codes.add(inline_c.hash_of(changed, size, 5))
        assert len(codes) == size + 3


@pytest.mark.parametrize("position", range(9))
def test_numbers_are_little_endian_at_any_position(position: int) -> None:
    data = bytearray(b"\xaa" * 20)
    memory.put64(data, position, 0x0102030405060708)
    assert data[position : position + 8] == bytes(range(8, 0, -1))
    assert memory.get64(data, position) == 0x0102030405060708
    memory.put32(data, position, 0xFFFF_FFFE)
    assert memory.get32(bytes(data), position) == 0xFFFF_FFFE
    assert data[:position] == b"\xaa" * position
    memory.put_high64(data, position, 0x0102030405060708)
    memory.put_high32(data, position + 4, 0x0A0B0C0D)
    assert data[position : position + 8] == bytes((1, 2, 3, 4, 10, 11, 12, 13))
    memory.put_high64(data, position, -2)
    assert data[position : position + 8] == b"\xff" * 7 + b"\xfe"


def test_rows_of_numbers_are_views_of_their_buffer() -> None:
    data = bytearray(16)
    memory.u16s(data)[1] = 0x0201
    memory.u32s(data)[1] = 0x06050403
    memory.u64s(data)[1] = 1
    assert data == b"\0\0\1\2\3\4\5\6\1" + bytes(7)


def test_copy_and_equal_work_on_ranges() -> None:
    data = bytearray(b"........")
    memory.copy(data, 2, b"xabcx", 1, 3)
    assert data == b"..abc..."
    assert memory.equal(data, 2, b"abc", 0, 3)
    assert not memory.equal(data, 2, b"abd", 0, 3)
    assert memory.equal(data, 2, b"abd", 0, 2)


def test_check_and_hash_and_text_work_on_ranges() -> None:
    data = b"xx123456789xx"
    assert memory.check_of(data, 2, 9, 0) == 0xE3069283
    assert memory.check_of(data, 6, 5, memory.check_of(data, 2, 4, 0)) == 0xE3069283
    assert memory.hash_of(data, 2, 9, 1) == memory.hash_of(bytearray(data), 2, 9, 1) != memory.hash_of(data, 2, 8, 1)
    assert memory.text_ok("aé\0".encode(), 0, 3)
    assert not memory.text_ok("aé\0".encode(), 0, 2)
    assert not memory.text_ok("aé\0".encode(), 0, 4)
    assert not memory.text_ok(b"\xed\xa0\x80", 0, 3)


def test_block_becomes_bytes_once_it_is_filled() -> None:
    block = memory.blank(3)
    memory.pointer(block)[1] = 7
    assert memory.filled(block) == b"\0\7\0"
