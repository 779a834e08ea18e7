cimport cython

cdef int _COMMAND_OK, _TUPLES_OK


@cython.locals(asked=list, status=int)
cdef tuple _results(object wire, list asked, set prepared)

cdef object _result(object wire, object waits)
