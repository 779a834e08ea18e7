cimport cython
from libc.stdint cimport int64_t, uint64_t

from everlog.base.columns cimport MessageColumns
from everlog.base.records cimport Records
from everlog.base.topic_table cimport TopicTable
from everlog.commitlog.committer cimport Committer
from everlog.commitlog.tail cimport Tail


cdef class HotPath:
    cdef public Tail _tail
    cdef public Committer _committer
    cdef public object _wake
    cdef public int64_t _seen
    cdef int64_t _quick_ns, _usual_ns
    cdef Py_ssize_t _quick_bytes

    cpdef Py_ssize_t append(self, MessageColumns columns, Py_ssize_t start, Py_ssize_t stop, uint64_t now_us,
                            TopicTable table, bytearray routes=*, int wanted=*, object publisher=*) except -1

    cpdef commit(self)

    @cython.locals(committer=Committer, began=int64_t, patience_ns=int64_t, done=int)
    cpdef bint commit_here(self, int64_t until_ns=*) except -1

    @cython.locals(committer=Committer, began=int64_t)
    cpdef bint _commit_once(self) except -1

    cdef int _took(self, int64_t ns) except -1

    @cython.locals(committed=int64_t, batches=list, last=Records)
    cpdef list read(self, int64_t offset, Py_ssize_t max_bytes)
