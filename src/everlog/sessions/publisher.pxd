cimport cython

from everlog.base.columns cimport PublishRun
from everlog.sessions.received_ids cimport ReceivedIds


cdef class Publisher:
    cdef public list unsure
    cdef public bint is_bridge
    cdef public dict _own
    cdef dict _unknown_own
    cdef ReceivedIds _received

    cpdef published(self, Py_ssize_t shard, long long start, long long end, long long floor)
    cpdef list own(self, Py_ssize_t shard)
