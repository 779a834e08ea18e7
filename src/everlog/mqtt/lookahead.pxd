cimport cython
from libc.stdint cimport uint32_t

from everlog.base.memory cimport equal, pointer, u32s
from everlog.base.topic_table cimport TopicTable

cdef Py_ssize_t _PACKETS, _MANY


cdef bint is_worth_it(TopicTable table) except -1

@cython.locals(begin=Py_ssize_t, packet=Py_ssize_t, at=Py_ssize_t, length=Py_ssize_t, shift="unsigned int",
               byte="unsigned int", name_size=Py_ssize_t)
cdef Py_ssize_t look_ahead(TopicTable table, const unsigned char* source, Py_ssize_t position,
                           Py_ssize_t size) except -1

@cython.locals(topic=Py_ssize_t, ends="uint32_t*", start=Py_ssize_t)
cdef bint is_next(TopicTable table, const unsigned char* source, Py_ssize_t at, Py_ssize_t size) except -1
