cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport pointer
from everlog.base.topic_table cimport TopicTable

cdef uint32_t _NOBODY


cdef class PublisherName:
    cdef readonly bytes name
    cdef readonly bint keeps_ids
    cdef uint64_t segment
    cdef uint32_t number

    @cython.locals(found=Py_ssize_t)
    cdef uint32_t number_in(self, TopicTable table, uint64_t segment) except? 0


cdef class PublisherColumn:
    cdef readonly list names
    cdef readonly bytearray places
