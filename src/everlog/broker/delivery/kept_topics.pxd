cimport cython
from libc.stdint cimport uint32_t

from everlog.base.columns cimport PublishRun
from everlog.base.memory cimport pointer, u32s
from everlog.base.topic_table cimport TopicTable
from everlog.topics.token_postings cimport TokenWalk


cdef class KeptTopics:
    cdef TopicTable _table
    cdef object _shard_of, _trie, _settings, _aged, _postings, _spilled
    cdef list _configured, _patterns, _lowest
    cdef dict _counts
    cdef Py_ssize_t _generation, _count, _unknown, _shards
    cdef list _by_lowest
    cdef public bint began
    cdef public Py_ssize_t looked_up
    cdef public bytearray routes

    @cython.locals(topics="uint32_t*", route="unsigned char*", row=Py_ssize_t, topic=Py_ssize_t)
    cpdef bint extend(self, PublishRun run=*) except -1

    @cython.locals(topics="uint32_t*", flags="unsigned char*", routes="unsigned char*", marks=bytearray, mark="unsigned char*", row=Py_ssize_t)
    cpdef bytearray shards_of(self, PublishRun run, int dropped)

    @cython.locals(route="unsigned char*", topic=Py_ssize_t)
    cpdef Py_ssize_t _forget(self, topics) except -1

    @cython.locals(qos=Py_ssize_t, to=Py_ssize_t, marks=Py_ssize_t, by_settings=Py_ssize_t, name=bytes)
    cdef int _look_up(self, Py_ssize_t topic) except -1

    @cython.locals(route="unsigned char*", qos=Py_ssize_t)
    cdef int _keep_all(self, Py_ssize_t topic, Py_ssize_t shard) except -1

    @cython.locals(lowest=Py_ssize_t, k=Py_ssize_t, pattern=TokenWalk)
    cdef Py_ssize_t _lowest_by_settings(self, Py_ssize_t topic) except -2
