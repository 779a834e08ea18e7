from everlog.streams.fresh cimport Appended, Fresh


cdef class Overlay:
    cdef readonly dict fresh
    cdef public list gone
    cdef public bint is_all_gone
