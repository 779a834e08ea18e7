cimport cython
from libc.stdint cimport int64_t

from everlog.base.memory cimport part, pointer
from everlog.broker.delivery.retained_columns cimport RetainedColumns
from everlog.broker.delivery.router cimport Router
from everlog.sessions.session cimport Session
from everlog.sessions.session_memory cimport SessionMemory, filter_bytes
from everlog.topics.token_postings cimport TokenWalk


cdef int _EVERYTHING
cdef Py_ssize_t _RUN, _WILD


cdef class FilterRuns:
    cdef Router _router
    cdef SessionMemory _memory
    cdef object _security, _metrics, _write_behind
    cdef Py_ssize_t _max_bytes, _max_levels, _max_filters
    cdef int _max_qos
    cdef bint _durable_wildcard

    @cython.locals(exact=list, ones=list, others=list)
    cpdef Py_ssize_t grant(self, Session session, bytes data, Py_ssize_t at, object identifier, bytearray reasons) except -1

    @cython.locals(source="const unsigned char*", end=Py_ssize_t, kept=bint, subscriptions=dict, retained=RetainedColumns,
                   room=Py_ssize_t, work=Py_ssize_t, begin=Py_ssize_t, stop=Py_ssize_t, wild=int, text=str,
                   size=Py_ssize_t, options=int, qos=int, no_local=bint)
    cdef Py_ssize_t _take(self, Session session, bytes data, Py_ssize_t at, object identifier, bytearray reasons,
                          list exact, list ones, list others) except -1

    @cython.locals(walk=TokenWalk)
    cdef bint _may_be_retained(self, RetainedColumns retained, bytes pattern, int wild) except -1

    @cython.locals(source="const unsigned char*", levels=Py_ssize_t, wild=int, everything=int,
                   place=Py_ssize_t, byte=int)
    cdef int _look_at(self, bytes data, Py_ssize_t begin, Py_ssize_t stop) except -2
