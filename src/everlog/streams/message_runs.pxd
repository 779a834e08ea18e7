cimport cython
from libc.stdint cimport uint32_t

from everlog.base.memory cimport copy, get32, part, pointer, put32, resize, room
from everlog.streams.fresh cimport appended


cdef Py_ssize_t RUN_ROW_BYTES, _ROWS, _BYTES, _HEAD, _FIRST_HEADS
cdef long long _ABSENT, _MOST


@cython.final
cdef class MessageRun:
    cdef readonly long long epoch, previous, seq, position, first_us, last_position, time_us, messages, bytes
    cdef readonly Py_ssize_t count, value_bytes
    cdef bytearray _heads, _values

    cpdef bint takes(self, long long epoch, long long position, long long time_us, Py_ssize_t size) except -1

    cpdef int add(self, long long position, long long time_us, bytes data, Py_ssize_t at, Py_ssize_t size) except -1

    @cython.locals(length=Py_ssize_t, head=Py_ssize_t, wanted=Py_ssize_t, heads="unsigned char*")
    cdef int _add(
        self, long long position, long long time_us, const unsigned char* source, Py_ssize_t at, Py_ssize_t size
    ) except -1

    @cython.locals(
        heads="unsigned char*", kept=Py_ssize_t, size=Py_ssize_t, moved=Py_ssize_t, last=Py_ssize_t,
        before="long long", rest=MessageRun, k=Py_ssize_t, head=Py_ssize_t, length="long long"
    )
    cpdef MessageRun cut(self, long long position)

    @cython.locals(count=Py_ssize_t, behind=Py_ssize_t, block=bytearray, out="unsigned char*", k=Py_ssize_t)
    cpdef tuple block(self)

    @cython.locals(
        found=list, heads="unsigned char*", previous="long long", messages="long long", size="long long", k=Py_ssize_t,
        head=Py_ssize_t, position="long long", begin=Py_ssize_t, length="long long", value=bytes, at_us="long long"
    )
    cpdef list records(self)
