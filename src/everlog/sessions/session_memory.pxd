cimport cython


@cython.locals(levels=Py_ssize_t, name=Py_ssize_t, size=Py_ssize_t)
cpdef Py_ssize_t filter_bytes(str text, bint kept) except -1
