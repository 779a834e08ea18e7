from everlog.base.topic_table cimport TopicTable
from everlog.broker.delivery.router cimport Router


cdef class Traffic:
    cdef public bytearray buffer, reserved
    cdef public TopicTable table
    cdef public Router router
    cdef public object metrics, time, turns, rules, hold_back
    cdef public bint checks, stores
    cdef public unsigned char refused_flags
    cdef public Py_ssize_t receive_maximum, inflight_bytes, topics, topics_bytes, bytes_in, bytes_out
