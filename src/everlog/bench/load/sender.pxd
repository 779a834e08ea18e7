cimport cython
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from everlog.base.columns cimport AckRun
from everlog.base.memory cimport copy, pointer, put32, put64, u16s, u64s
from everlog.bench.load.figures cimport Tally

cdef enum:
    _PUBACK = 4
    _PUBREC = 5
    _PUBCOMP = 7


cdef class Sender:
    cdef readonly Tally tally
    cdef readonly uint32_t run, number
    cdef readonly unsigned int qos
    cdef readonly bytes heads, filler
    cdef readonly Py_ssize_t topics, head_bytes, packet_bytes, window, inflight, id_space
    cdef public Py_ssize_t least, next, limit
    cdef Py_ssize_t last_id
    cdef bytearray times, state
    cdef uint64_t start_ns, step_ns, offset_ns, tick_ns

    cpdef schedule(self, uint64_t start_ns, uint64_t step_ns, uint64_t offset_ns, uint64_t tick_ns)

    @cython.locals(since=uint64_t)
    cpdef uint64_t due_ns(self, uint64_t sequence) noexcept

    @cython.locals(count=Py_ssize_t, free=Py_ssize_t)
    cpdef Py_ssize_t room(self) noexcept

    @cython.locals(target="unsigned char*", heads="unsigned char*", filler="unsigned char*", size=Py_ssize_t,
                   state="unsigned char*", times="uint64_t*", packet_id=Py_ssize_t, stamped=bint, sequence=Py_ssize_t,
                   topic=Py_ssize_t, time_ns=uint64_t, _=Py_ssize_t)
    cpdef Py_ssize_t render(self, bytearray out, Py_ssize_t at, Py_ssize_t count, uint64_t now_ns) except -1

    @cython.locals(ids="uint16_t*", i=Py_ssize_t)
    cpdef Py_ssize_t acked(self, AckRun run, uint64_t now_ns) except -1

    @cython.locals(source="unsigned char*", at=Py_ssize_t)
    cpdef Py_ssize_t scan(self, data, Py_ssize_t end, uint64_t now_ns) except -1

    @cython.locals(tally=Tally, state="unsigned char*", then=uint64_t)
    cdef int _ack(self, unsigned int kind, unsigned int packet_id, uint64_t now_ns) except -1
