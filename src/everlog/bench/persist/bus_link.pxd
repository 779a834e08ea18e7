cimport cython
from libc.stdint cimport uint64_t

from everlog.base.memory cimport copy, equal, pointer, put64, u64s
from everlog.bench.load.figures cimport Histogram
from everlog.bench.load.posix cimport now_ns, receive, transmit


cdef class Budget:
    cdef public long long left


cdef class BusLink:
    cdef readonly int fd
    cdef bint is_mqtt
    cdef bytearray buffer
    cdef Budget budget
    cdef Histogram times
    cdef public bint count_events
    cdef public long long done, refused, received, in_flight, window
    cdef list _requests
    cdef bytearray _holes, _sent, _out
    cdef bytes _mark, _tail
    cdef Py_ssize_t _next, _first, _begin, _end
    cdef uint64_t _id

    @cython.locals(size=Py_ssize_t, held=Py_ssize_t, got=Py_ssize_t, end=Py_ssize_t, at=Py_ssize_t)
    cpdef int serve(self) except -1

    @cython.locals(put=Py_ssize_t)
    cpdef int write(self) except -1

    @cython.locals(now=uint64_t, holes="uint64_t*", request=bytes, size=Py_ssize_t, out="unsigned char*")
    cdef int _render(self) except -1

    @cython.locals(digits="const unsigned char*", k=int)
    cdef int _digits(self, unsigned char* out, Py_ssize_t at, uint64_t value) except -1

    @cython.locals(
        source="const unsigned char*", at=Py_ssize_t, stop=Py_ssize_t, size=Py_ssize_t, scale=Py_ssize_t, k=Py_ssize_t
    )
    cdef Py_ssize_t _parse_nats(self, Py_ssize_t end, uint64_t now) except -1

    @cython.locals(
        source="const unsigned char*", at=Py_ssize_t, size=Py_ssize_t, shift=int, body=Py_ssize_t, payload=Py_ssize_t
    )
    cdef Py_ssize_t _parse_mqtt(self, Py_ssize_t end, uint64_t now) except -1

    @cython.locals(events=int, first=int, ring=Py_ssize_t, mark=Py_ssize_t, last=Py_ssize_t, k=Py_ssize_t)
    cdef int _took(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t size, uint64_t now) except -1
