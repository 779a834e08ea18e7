cimport cython
from libc.stdint cimport int64_t, uint64_t

from everlog.base.columns cimport MessageColumns
from everlog.base.records cimport Records
from everlog.base.topic_table cimport TopicTable
from everlog.commitlog.open_batch cimport OpenBatch
from everlog.commitlog.segment_writer cimport SegmentWriter
from everlog.commitlog.tail cimport Tail


cdef enum:  # of segment_format
    HEADER_BYTES = 128


cdef class Committer:
    cdef public int64_t committed
    cdef readonly object failure, trouble, barred
    cdef readonly bint closed
    cdef readonly int64_t groups, batches, records, committed_bytes
    cdef readonly double write_s
    cdef double _began
    cdef public object completed, announce, failed, troubled
    cdef OpenBatch _open_batch
    cdef SegmentWriter _writer
    cdef Tail _tail
    cdef bint _syncing, _in_memory
    cdef object _gate, _stepping, _leaving, _waiters
    cdef list _held, _left, _unwritten
    cdef Py_ssize_t _entering
    cdef Py_ssize_t _done
    cdef double _delay_s, _again_at

    cpdef Py_ssize_t pending(self)

    cpdef Py_ssize_t append(self, MessageColumns columns, Py_ssize_t start, Py_ssize_t stop, uint64_t now_us,
                            TopicTable table, bytearray routes, int wanted, object publisher) except -1

    @cython.locals(shown=bint)
    cpdef int ask(self, int64_t offset) except -1

    @cython.locals(waiting=OpenBatch, group=list)
    cdef bint _show_unwritten(self) except -1
    cpdef bint step(self) except -1
    cpdef int try_step(self, int64_t offset) except -2

    @cython.locals(group=list)
    cdef bint _step(self, int64_t offset) except -1

    cdef bint _mend(self) except -1
    cdef bint _enter(self) except -1

    @cython.locals(group=list, done=int)
    cpdef int quick_step(self, int64_t offset, int64_t patience_ns) except -2

    @cython.locals(waiting=OpenBatch, writer=SegmentWriter)
    cdef list _take_quickly(self, int64_t offset)
    cdef int _write_aside(self, list group, int64_t patience_ns) except -2

    @cython.locals(group=list)
    cdef bint _end_left(self) except -1

    @cython.locals(batches=list, records=Records)
    cdef int _wrote(self, list group) except -1

    @cython.locals(rest=list, records=Records, segment=int64_t)
    cdef bint _commit(self, list group) except -1

    @cython.locals(writer=SegmentWriter, end=int64_t, k=Py_ssize_t, base=int64_t, batches=list, size=Py_ssize_t,
                   records=Records)
    cdef int _write(self, list group) except -1

    cdef int _publish(self, list batches, int64_t committed) except -1

    @cython.locals(records=Records)
    cdef int _show(self, list batches, int64_t committed) except -1
    cdef int _tell(self) except -1
