cimport cython

from everlog.streams.fresh cimport Appended, Asked
from everlog.streams.journal_rows cimport TurnRecords
from everlog.streams.plain_codec cimport Packer
from everlog.streams.stream_state cimport StreamState


@cython.final
cdef class Waiting:
    cdef readonly long long position
    cdef readonly StreamState state
    cdef readonly object record
    cdef readonly int level
    cdef public object answer, result, before
    cdef public Asked asked


@cython.final
cdef class OpenTurn:
    cdef public long long next, time_us, pending_rows, pending_bytes
    cdef public bint is_timed, has_early
    cdef readonly TurnRecords records
    cdef readonly list decided

    cpdef int add(self, str name, object data, Py_ssize_t size, object one) except -1


@cython.locals(one=Waiting, record=Appended, asked=Asked, who=Asked, plain=list, others=list, fed=list, code=int)
cpdef tuple take_reached(object waiting, long long committed, Packer packer, long long epoch, object level)

@cython.locals(asked=Asked, who=Asked, plain=list, early=list, code=int)
cpdef tuple take_early(list decided, Packer packer, long long epoch, object level)
