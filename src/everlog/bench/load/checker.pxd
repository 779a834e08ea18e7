cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.columns cimport MessageColumns, PublishRun
from everlog.base.memory cimport equal, get32, get64, pointer, u32s, u64s
from everlog.bench.load.figures cimport Histogram, Tally

cdef enum:
    _STAMP_BYTES = 24
    _FLAGS = 0x07


cdef class Checker:
    cdef readonly Tally tally
    cdef readonly uint32_t run
    cdef readonly Py_ssize_t publishers, topics
    cdef readonly bytes filler
    cdef readonly unsigned int flags
    cdef readonly uint64_t received, distinct
    cdef bytearray expected
    cdef readonly dict gaps

    @cython.locals(columns=MessageColumns, source="unsigned char*", flags="unsigned char*", topics="uint32_t*",
                   starts="uint32_t*", ends="uint32_t*", expected="uint64_t*", filler="unsigned char*",
                   size=Py_ssize_t, streams=uint64_t, tally=Tally, deliveries=Histogram, mine=Py_ssize_t,
                   distinct=Py_ssize_t, i=Py_ssize_t, at=Py_ssize_t, number=uint64_t, stream=uint64_t, then=uint64_t)
    cpdef Py_ssize_t take(self, PublishRun run, uint64_t now_ns) except -1

    @cython.locals(expected="uint64_t*")
    cdef bint _unexpected(self, uint64_t stream, uint64_t number) except -1
