cimport cython


cdef class Node:
    cdef public str token
    cdef public Node child, plus
    cdef public dict children
    cdef public object here, multi

    cpdef Node get(self, str token)
    cpdef Node grow(self, str token)
    cpdef cut(self, str token)
    cpdef bint is_bare(self) except -1


cdef tuple _put(bucket, new)
cdef tuple _take(bucket, flt, key)

@cython.locals(added=Py_ssize_t, place=Py_ssize_t, text=str)
cdef Py_ssize_t _put_exact(dict exact, list filters, key, list values) except -1

@cython.locals(text=str, others=list)
cdef list _take_exact(dict exact, list texts, key)
cdef _collect(bucket, list found)
