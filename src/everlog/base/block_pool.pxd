cimport cython

from everlog.base.memory cimport is_shared, room

cdef Py_ssize_t _MARGIN_BYTES, _FORGET_AFTER


cdef class BlockPool:
    cdef readonly Py_ssize_t block_bytes, least_bytes, gap_bytes, most
    cdef list _blocks
    cdef Py_ssize_t _next, _small

    @cython.locals(count=Py_ssize_t, k=Py_ssize_t, place=Py_ssize_t)
    cpdef bytearray take(self, Py_ssize_t size)

    @cython.locals(place=Py_ssize_t)
    cpdef int made_small(self) except -1
