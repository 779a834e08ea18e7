cimport cython

from everlog.streams.fresh cimport Appended
from everlog.streams.plain_codec cimport Packer
from everlog.streams.stream_state cimport StreamState


@cython.final
cdef class Waiting:
    cdef readonly long long position
    cdef readonly StreamState state
    cdef readonly object record, level
    cdef public object answer, result, before, asker, key
    cdef public unsigned long long id
    cdef public object data
    cdef public bint is_answered


@cython.locals(made=Waiting)
cpdef Waiting plain_waiting(
    Appended record, StreamState state, object level, object before, object asker, object key, unsigned long long id
)


@cython.final
cdef class OpenTurn:
    cdef public long long next, time_us, pending_rows, pending_bytes
    cdef public bint is_timed, has_early
    cdef readonly list records, decided

    cpdef int add(self, str name, bytes data, Waiting one) except -1


@cython.locals(one=Waiting, plain=list, others=list, fed=list, code=int)
cpdef tuple take_reached(object waiting, long long committed, Packer packer, long long epoch, object level)

@cython.locals(one=Waiting, plain=list, early=list, code=int)
cpdef tuple take_early(list decided, Packer packer, long long epoch, object level)

@cython.locals(record=Appended)
cdef int answer(Waiting one, Packer packer, long long epoch, int level) except -1
