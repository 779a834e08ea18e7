cimport cython

from everlog.base.memory cimport look_up, part, pointer
from everlog.streams.fresh cimport Appended, Asked, Fresh, appended
from everlog.streams.plain_codec cimport GET, SET, Packer, PlainCall
from everlog.streams.stream_state cimport StreamState
from everlog.streams.waiting cimport OpenTurn, Waiting


cdef Py_ssize_t _SMALL


@cython.final
cdef class PlainRequests:
    cdef public bint is_open
    cdef public long long committed
    cdef public Packer packer
    cdef public list answered
    cdef public dict followed
    cdef OpenTurn _turn
    cdef object _states, _unapplied, _clock, _waiting, _later
    cdef dict _ripe, _unsynced
    cdef long long _epoch, _most_waiting, _most_bytes, _value_bytes, _apply_rows, _apply_bytes, _few_states, _row_bytes
    cdef PlainCall _call

    @cython.locals(call=PlainCall, op=int, turn=OpenTurn, state=StreamState)
    cpdef int take(
        self, bytes data, Py_ssize_t at, str name, bytes raw_name, bint may_write, Asked asked
    ) except -1

    @cython.locals(call=PlainCall, size=Py_ssize_t, seq="long long", value=bytes, message_id=str)
    cdef int _append(
        self, StreamState state, bytes data, Asked asked
    ) except -1

    @cython.locals(
        call=PlainCall, turn=OpenTurn, now="long long", position="long long", seq="long long", size=Py_ssize_t,
        total="long long", packed=Py_ssize_t, taken=Py_ssize_t
    )
    cdef int _add(self, StreamState state, bytes data, Asked asked) except -1

    @cython.locals(turn=OpenTurn, now="long long")
    cdef int _be_timed(self) except -1

    @cython.locals(turn=OpenTurn, position="long long", rows=Py_ssize_t)
    cdef int _note(self, StreamState state, Py_ssize_t packed, Py_ssize_t taken, object one, int level) except -1

    @cython.locals(
        call=PlainCall, size=Py_ssize_t, name=str, value=bytes, message_id=str, total="long long", messages="long long",
        fresh=Fresh
    )
    cdef int _put(
        self, StreamState state, bytes data, Asked asked
    ) except -1

    cdef object _known(self, StreamState state, str key)

    @cython.locals(call=PlainCall)
    cdef object _new_id(self, StreamState state, bytes data)

    @cython.locals(now="long long", position="long long", record=Appended, level=int, packed=Py_ssize_t, taken=Py_ssize_t)
    cdef int _decide(
        self, StreamState state, long long seq, long long messages, long long size, object value, str name,
        str message_id, Asked asked
    ) except -1

    @cython.locals(call=PlainCall, raw=bytes, name=str, most="long long", one=Appended, fresh=Fresh, expires_us="long long")
    cdef int _get(
        self, StreamState state, bytes data, Asked asked
    ) except -1


cdef object _decoded(bytes raw)
