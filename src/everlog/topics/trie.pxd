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
cdef _collect(bucket, list found)
