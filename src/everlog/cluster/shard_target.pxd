cimport cython
from libc.stdint cimport int64_t

from everlog.base.records cimport Records
from everlog.cluster.origins cimport Origins
from everlog.cluster.tail_commits cimport Part, TailCommits


cdef class ShardTarget:
    cdef public Py_ssize_t shard
    cdef public int64_t epoch, end
    cdef public bint is_in_doubt, is_stopped
    cdef public Py_ssize_t doubts
    cdef public object waits_since, troubled, wrote
    cdef public Origins origins
    cdef public object _own
    cdef readonly TailCommits _commits
    cdef Py_ssize_t _table_bytes, _transaction_bytes, _table
    cdef object _lock, _changed
    cdef list _fills
    cdef bint _is_in_trouble

    @cython.locals(records=Records, end=int64_t)
    cpdef object rows(self, object group)

    @cython.locals(taken=list, size=Py_ssize_t, table=Py_ssize_t)
    cpdef Part part(self, object rows, Py_ssize_t room)

    cdef bint _has_room(self) except -1
    cpdef int begin(self) except -1
    cpdef int end_wait(self) except -1
    cpdef int committed(self, Part part) except -1
