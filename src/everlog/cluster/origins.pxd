cdef class Origins:
    cdef object _own, _at, _runs, _lock
    cdef public dict _appended, _placed
    cdef dict _closed

    cpdef object last(self, object origin)
