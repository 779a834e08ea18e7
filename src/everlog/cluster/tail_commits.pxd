cimport cython


cdef class Part:
    cdef public object target, rows, refusal
    cdef public Py_ssize_t size
    cdef public bint is_in_doubt, is_committed


cdef class TailCommits:
    cdef public object tables, lock, changed, wake, filled
    cdef object _pause
    cdef Py_ssize_t _failures

    @cython.locals(part=Part, left=list, doubted=list, asked=list)
    cpdef int commit(self, object parts) except -1
