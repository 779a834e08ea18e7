cimport cython
from libc.stdint cimport int64_t

from everlog.base.records cimport Records
from everlog.commitlog.committer cimport Committer
from everlog.commitlog.open_batch cimport OpenBatch


cdef enum:  # of segment_format
    HEADER_BYTES = 128


cdef class CopyCommitter(Committer):
    cdef readonly object target
    cdef public object lost
    cdef readonly Py_ssize_t unwritten_bytes

    @cython.locals(waiting=OpenBatch)
    cpdef bint wants_step(self) except -1

    cpdef int ask(self, int64_t offset) except -1
    cpdef int try_step(self, int64_t offset) except -2
    cdef list _take_quickly(self, int64_t offset)
    cpdef bint step(self) except -1

    @cython.locals(group=list)
    cdef int _write_unwritten(self) except -1

    cdef int _take_committed(self, list part) except -1
    cdef int _lose(self, object why) except -1
    cdef int _write_all(self) except -1


@cython.locals(records=Records, size=Py_ssize_t)
cdef Py_ssize_t _size_of(list part) except -1
