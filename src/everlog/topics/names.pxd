cimport cython

cdef tuple _split_share(str text)
cdef int _check_wildcards(str pattern) except -1
cdef int _check_string(str text, int reason, str what, max_levels, Py_ssize_t max_bytes) except -1
cdef int _check_levels(str text, int reason, str what, Py_ssize_t max_levels) except -1
