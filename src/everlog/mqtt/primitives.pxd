cimport cython


cdef class Reader:
    cdef public bytes data
    cdef public Py_ssize_t pos, end
    cdef public str clause

    @cython.locals(pos=Py_ssize_t)
    cdef Py_ssize_t _advance(self, Py_ssize_t size) except -1
    cpdef int u8(self) except -1

    @cython.locals(pos=Py_ssize_t)
    cpdef int u16(self) except -1

    @cython.locals(size=Py_ssize_t, pos=Py_ssize_t)
    cpdef bytes binary(self)

    @cython.locals(raw=bytes)
    cpdef str string(self)
    cpdef finish(self)
