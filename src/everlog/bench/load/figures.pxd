cimport cython
from libc.stdint cimport uint64_t

from everlog.base.memory cimport u64s


cdef class Histogram:
    cdef readonly uint64_t count, highest, total
    cdef readonly bytearray buckets

    @cython.locals(shift=Py_ssize_t)
    cpdef int add(self, uint64_t value) except -1


cdef class Tally:
    cdef public uint64_t sent, acked, received, distinct, duplicates, late, foreign, corrupt, wrong_flags
    cdef public uint64_t strange_acks, redelivered, read_bytes, last_ns
    cdef readonly Histogram deliveries, answers
