cimport cython
from libc.stdint cimport int64_t, uint64_t

from everlog.base.columns cimport MessageColumns, PublishRun
from everlog.base.positions cimport NOT_KEPT
from everlog.base.record_builder cimport RecordBuilder
from everlog.base.topic_table cimport TopicTable
from everlog.broker.delivery.fanout cimport Fanout


cdef class UnkeptMessages:
    cdef Fanout _fanout
    cdef RecordBuilder _builder
    cdef int64_t _offset

    @cython.locals(builder=RecordBuilder, taken=Py_ssize_t, end=int64_t)
    cdef int add(self, PublishRun run, uint64_t now, TopicTable table, bytearray routes, object publisher) except -1
    cdef int add_all(self, MessageColumns columns, Py_ssize_t count, uint64_t now, TopicTable table) except -1

    @cython.locals(builder=RecordBuilder)
    cdef int route(self) except -1
