cimport cython
from libc.stdint cimport int64_t


cdef class AckQueue:
    cdef public object sink
    cdef public PendingAck first, last


cdef class PendingAck:
    cdef AckQueue queue
    cdef bytes acks
    cdef Py_ssize_t pubacks, missing
    cdef PendingAck next


cdef class PendingAcks:
    cdef public Py_ssize_t waiting_bytes
    cdef list _by_shard

    @cython.locals(pending=PendingAck)
    cpdef wait(self, AckQueue queue, bytes acks, Py_ssize_t pubacks, list positions)

    @cython.locals(pending=PendingAck, queue=AckQueue)
    cpdef committed(self, Py_ssize_t shard, int64_t end)

    @cython.locals(pending=PendingAck, queue=AckQueue)
    cpdef list fail(self, Py_ssize_t shard)

    @cython.locals(pending=PendingAck)
    cdef int _release(self, AckQueue queue) except -1
