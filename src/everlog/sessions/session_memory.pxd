cimport cython


cdef class SessionMemory:
    cdef public Py_ssize_t max_bytes, total_bytes

    @cython.locals(most=Py_ssize_t)
    cpdef bint has_room(self, Py_ssize_t held_bytes, Py_ssize_t more_bytes) except -1


@cython.locals(levels=Py_ssize_t, name=Py_ssize_t, size=Py_ssize_t)
cpdef Py_ssize_t filter_bytes(str text, bint kept) except -1
