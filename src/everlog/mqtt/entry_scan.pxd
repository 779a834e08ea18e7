cimport cython

from everlog.base.memory cimport equal, pointer, text_ok


@cython.locals(source="const unsigned char*", stop=Py_ssize_t)
cpdef Py_ssize_t skip_pairs(bytes data, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(source="const unsigned char*", share="const unsigned char*", stop=Py_ssize_t, options="unsigned int")
cpdef Py_ssize_t skip_filters(bytes data, Py_ssize_t at, Py_ssize_t end, int version) except -1

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t _skip_text(const unsigned char* source, Py_ssize_t at, Py_ssize_t end) except -2
