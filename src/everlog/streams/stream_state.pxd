cimport cython

from everlog.streams.fresh cimport Appended
from everlog.streams.message_runs cimport MessageRun
from everlog.streams.overlay cimport Overlay


@cython.final
cdef class StoredId:
    cdef readonly long long position, time_us, previous, seq, count
    cdef readonly object seqs


@cython.final
cdef class StreamState:
    cdef readonly str name
    cdef public object kind, config, ids, uploads, queues
    cdef public list pending
    cdef public object oldest
    cdef public long long born, last, position, epoch, applied_position, applied_epoch, time_us, last_seq, messages
    cdef public long long bytes, next_due_us, filed, pending_bytes, id_time_us, forgotten, tokens_us, unfed
    cdef public double tokens
    cdef public bint is_hidden, is_removed, has_removal, has_rows, has_queues, is_plain, is_simple, is_simple_store
    cdef readonly Overlay known
    cdef Py_ssize_t unseen
    cdef readonly Py_ssize_t pending_rows
    cdef MessageRun _run
    cdef public dict front

    cpdef int append(self, Appended record, Py_ssize_t size) except -1

    @cython.locals(run=MessageRun, held=Py_ssize_t)
    cpdef Py_ssize_t add(
        self, long long position, long long time_us, long long epoch, bytes data, Py_ssize_t at, Py_ssize_t size
    ) except -1

    @cython.locals(found=list, appended=Appended, run=MessageRun, rest=MessageRun)
    cpdef list records(self, long long committed)
