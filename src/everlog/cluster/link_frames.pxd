cimport cython
from libc.stdint cimport uint32_t

from everlog.base.memory cimport check_of, get32, get64, part, pointer

cdef unsigned char _MAGIC_0, _MAGIC_1, _VERSION
cdef Py_ssize_t _HEADER_BYTES, _CHECKED_BYTES


cdef class LinkDecoder:
    cdef public Py_ssize_t max_body
    cdef list _parts
    cdef Py_ssize_t _held, _needed

    @cython.locals(end=Py_ssize_t, raw="const unsigned char*", frames=list, at=Py_ssize_t, body=Py_ssize_t)
    cpdef list feed(self, object data, Py_ssize_t size=*)
    cdef int _hold(self, object data, Py_ssize_t start, Py_ssize_t stop) except -1

    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t _body_size(self, const unsigned char* raw, Py_ssize_t at, Py_ssize_t end) except -2

    @cython.locals(start=Py_ssize_t, check=uint32_t)
    cdef object _frame(self, const unsigned char* raw, Py_ssize_t at, Py_ssize_t size)
