cimport cython
from libc.stdint cimport int64_t

from everlog.base.records cimport Records


cdef class Tail:
    cdef readonly Py_ssize_t limit_bytes, held_bytes
    cdef list _batches
    cdef Py_ssize_t _first
    cdef object _lock

    @cython.locals(records=Records)
    cpdef int add(self, list batches, int64_t written) except -1

    @cython.locals(oldest=Records)
    cpdef int trim(self, int64_t written) except -1

    @cython.locals(oldest=Records)
    cpdef int forget(self, int64_t below) except -1

    @cython.locals(records=Records, found=list, count=Py_ssize_t, size=Py_ssize_t, k=Py_ssize_t)
    cpdef list read(self, int64_t offset, Py_ssize_t max_bytes)

    cdef Py_ssize_t _memory(self, Records records) except -1

    @cython.locals(records=Records, low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t)
    cdef Py_ssize_t _row(self, int64_t offset)
