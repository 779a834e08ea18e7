from everlog.base.topic_table cimport TopicTable


cdef class KeptTopics:
    cdef TopicTable _table
    cdef object _shard_of, _trie, _cache, _settings
    cdef dict _counts
    cdef Py_ssize_t _generation, _known
    cdef list _stale
    cdef bint _changed
    cdef public bytearray routes

    cpdef bint extend(self) except -1
