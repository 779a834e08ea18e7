cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.columns cimport MessageColumns, PublishRun
from everlog.base.memory cimport copy, equal, get32, get64, pointer, u32s, u64s
from everlog.bench.load.figures cimport Tally

cdef enum:
    _STAMP_BYTES = 24
    _FLAGS = 0x07
    _FOREIGN = 0xFFFFFFFFFFFFFFFF
    _WHOLE_BYTES = 0x10000


cdef class Checker:
    cdef readonly Tally tally
    cdef readonly uint32_t run
    cdef readonly uint64_t topics, streams
    cdef readonly bytes filler, prefix, names
    cdef readonly unsigned int flags
    cdef readonly Py_ssize_t name_bytes, ack_bytes, rest_bytes
    cdef readonly uint64_t received, distinct
    cdef bytearray expected
    cdef readonly bytearray acks
    cdef readonly dict gaps

    @cython.locals(size=Py_ssize_t, with_ids=bint, prefix_bytes=Py_ssize_t, payload=Py_ssize_t, whole=Py_ssize_t,
                   source="unsigned char*", prefix="unsigned char*", names="unsigned char*", acks="unsigned char*",
                   at=Py_ssize_t, count=Py_ssize_t, stream=uint64_t, rest=Py_ssize_t)
    cpdef Py_ssize_t scan(self, data, Py_ssize_t end, uint64_t now_ns) except -1

    @cython.locals(columns=MessageColumns, source="unsigned char*", flags="unsigned char*", topics="uint32_t*",
                   starts="uint32_t*", ends="uint32_t*", tally=Tally, mine=Py_ssize_t, i=Py_ssize_t, at=Py_ssize_t,
                   stream=uint64_t)
    cpdef Py_ssize_t take(self, PublishRun run, uint64_t now_ns) except -1

    cdef int _seen(self, Py_ssize_t count, uint64_t now_ns) except -1

    @cython.locals(stream=uint64_t)
    cdef uint64_t _stream(self, const unsigned char* source, Py_ssize_t at) noexcept

    @cython.locals(tally=Tally, filler="unsigned char*", number=uint64_t, expected="uint64_t*", then=uint64_t)
    cdef int _check(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t size, uint64_t stream,
                    uint64_t now_ns) except -1

    @cython.locals(expected="uint64_t*")
    cdef bint _unexpected(self, uint64_t stream, uint64_t number) except -1
