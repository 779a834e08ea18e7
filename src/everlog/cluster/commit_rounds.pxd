cimport cython

from everlog.cluster.shard_target cimport ShardTarget
from everlog.cluster.tail_commits cimport Part, TailCommits


cdef class _Step:
    cdef public Part part
    cdef public bint is_over
    cdef public object wants_step
    cdef object _steps, _rows
    cdef ShardTarget _target

    cdef Part next_part(self, Py_ssize_t room)

    @cython.locals(part=Part)
    cdef int look(self) except -1

    cdef int _refuse(self, object why) except -1
    cdef int _go_on(self, object refusal=*) except -1


cdef class CommitRounds:
    cdef TailCommits _commits
    cdef list _shards
    cdef public dict _steps
    cdef double _write_at

    @cython.locals(steps=dict, step=_Step, part=Part, parts=list, room=Py_ssize_t, again=bint)
    cpdef bint step(self) except -1

    @cython.locals(step=_Step)
    cpdef double rest_s(self) except -1

    @cython.locals(step=_Step)
    cdef int _begin(self, object log, ShardTarget target) except -1


@cython.locals(part=Part)
cdef bint _has_decided(list parts) except -1
