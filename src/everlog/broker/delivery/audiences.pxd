cimport cython

from everlog.base.records cimport Records
from everlog.base.topic_table cimport TopicTable
from everlog.broker.delivery.partition cimport Partitioner


cdef class Names:
    cdef readonly TopicTable table
    cdef Py_ssize_t generation
    cdef readonly bytearray column


cdef class Audiences:
    cdef readonly Py_ssize_t filters, resets
    cdef public Py_ssize_t max_bytes
    cdef public bytearray column
    cdef TopicTable _table
    cdef object _target_of, _trie, _cache, _numbers
    cdef set _unused
    cdef tuple _last
    cdef Py_ssize_t _generation
    cdef list _names
    cdef Partitioner _partitioner

    cpdef subscribe(self, session, flt, subscribed)
    cpdef bint unsubscribe(self, session, flt) except -1
    cpdef subscribe_exact(self, session, list filters, list subscribed)
    cpdef list unsubscribe_exact(self, session, list texts)

    @cython.locals(names=Names)
    cpdef list split_at_once(self, Records records, Py_ssize_t first_row, Py_ssize_t stop_row)
    cdef _parts(self, Records records, Py_ssize_t first_row, bytearray names, bytearray column, Py_ssize_t stop_row)

    @cython.locals(names=Names, missing=Py_ssize_t)
    cdef Names _names_of(self, TopicTable table)

    @cython.locals(missing=Py_ssize_t)
    cdef _extend(self)
