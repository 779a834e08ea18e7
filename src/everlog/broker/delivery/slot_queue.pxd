cimport cython
from libc.stdint cimport uint32_t

from everlog.base.memory cimport pointer, u32s

cdef Py_ssize_t _FEW


cdef class SlotQueue:
    cdef readonly Py_ssize_t added
    cdef bytearray _column
    cdef Py_ssize_t _first, _end

    cpdef int add(self, Py_ssize_t slot) except -1

    @cython.locals(slot=Py_ssize_t)
    cpdef Py_ssize_t take(self) except -2

    @cython.locals(slots="uint32_t*", to="uint32_t*", mark="unsigned char*", at=Py_ssize_t)
    cpdef int translate(self, bytearray moved, bytearray marks) except -1
