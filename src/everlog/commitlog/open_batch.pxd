cimport cython
from libc.stdint cimport int64_t, uint64_t

from everlog.base.block_pool cimport BlockPool
from everlog.base.columns cimport MessageColumns
from everlog.base.record_builder cimport RecordBuilder
from everlog.base.records cimport Records
from everlog.base.topic_table cimport TopicTable

cdef enum:  # of segment_format
    FRAME_BYTES = 32
    HEADER_BYTES = 128


cdef class OpenBatch:
    cdef Py_ssize_t _batch_bytes, _whole_bytes, _pending_limit, _segment_bytes, _closed_bytes, _position
    cdef int64_t _segment_us, _segment_time
    cdef uint64_t _span_us
    cdef bint _full
    cdef RecordBuilder _builder
    cdef readonly BlockPool pool
    cdef list _closed
    cdef readonly Py_ssize_t in_flight_bytes
    cdef readonly int64_t end, asked, segment

    cpdef Py_ssize_t pending(self)

    @cython.locals(builder=RecordBuilder, taken=Py_ssize_t)
    cpdef Py_ssize_t append(self, MessageColumns columns, Py_ssize_t start, Py_ssize_t stop, uint64_t now_us,
                            TopicTable table, bytearray routes, int wanted, object publisher) except -1

    cpdef int64_t first(self) except -1
    cpdef bint is_plain(self)
    cpdef ask(self, int64_t offset)

    @cython.locals(first=int64_t)
    cpdef int close(self) except -1

    @cython.locals(builder=RecordBuilder, records=Records)
    cdef int _place(self, Py_ssize_t rows) except -1

    @cython.locals(first=int64_t, taken=list, count=Py_ssize_t, records=Records)
    cpdef list take(self)

    @cython.locals(first=Records, old=int64_t, base=int64_t, table=TopicTable, records=Records, segment=int64_t,
                   leading=Records, moved=list)
    cpdef list move(self, list group)

    cpdef int written(self, Py_ssize_t size) except -1
    cpdef int drop(self, int64_t end) except -1
    cpdef int pass_by(self, int64_t end, Py_ssize_t size) except -1
