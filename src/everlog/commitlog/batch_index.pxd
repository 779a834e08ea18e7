from cpython.array cimport array
from libc.stdint cimport int64_t

from everlog.base.records cimport Records
from everlog.commitlog.array_push cimport push32, push64


cdef class GrowingIndex:
    cdef array _offsets, _first_times, _last_times, _positions, _sizes, _counts
    cdef object _snapshot

    cpdef int add(self, Records records, int64_t position) except -1
