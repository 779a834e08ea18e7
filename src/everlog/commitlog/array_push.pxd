# The inline C twins of array_push.py.
from cpython.array cimport array, extend_buffer
from libc.stdint cimport uint32_t, uint64_t


cdef inline int push64(array column, uint64_t value) except -1:
    return extend_buffer(column, <char*>&value, 1)


cdef inline int push32(array column, uint32_t value) except -1:
    return extend_buffer(column, <char*>&value, 1)
