from everlog.base.records cimport Records
from everlog.sessions.merged_subscription cimport MergedSubscription


# The fields in the order of the dataclass.
cdef class OutgoingRows:
    cdef public Records records
    cdef public bytearray rows
    cdef public Py_ssize_t start
    cdef public Py_ssize_t stop
    cdef public MergedSubscription merged
    cdef public Py_ssize_t size_bytes
    cdef public bint at_most_once

    cpdef Py_ssize_t row(self) except -1
    cpdef long long offset(self) except -1
