cimport cython
from libc.stdint cimport uint16_t

from everlog.base.columns cimport PublishRun
from everlog.base.memory cimport pointer, u16s


cdef class ReceivedIds:
    cdef readonly bytearray bits

    @cython.locals(flags="unsigned char*", ids="uint16_t*", bits="unsigned char*", dropped=Py_ssize_t, i=Py_ssize_t,
                   place=Py_ssize_t, bit=int)
    cpdef Py_ssize_t drop_duplicates(self, PublishRun run) except -1

    @cython.locals(column="uint16_t*", bits="unsigned char*", count=Py_ssize_t, k=Py_ssize_t, place=Py_ssize_t, bit=int)
    cpdef Py_ssize_t discard(self, bytes ids) except -1

    @cython.locals(column="uint16_t*", bits="unsigned char*", known=bytearray, out="unsigned char*", k=Py_ssize_t,
                   place=Py_ssize_t, bit=int)
    cpdef bytes release(self, bytes ids)

    @cython.locals(column="uint16_t*", bits="unsigned char*", count=Py_ssize_t, k=Py_ssize_t)
    cpdef Py_ssize_t count(self, bytes ids) except -1
