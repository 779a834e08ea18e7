cimport cython
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from everlog.base.columns cimport AckRun
from everlog.base.memory cimport pointer, put64, u16s, u32s, u64s
from everlog.base.positions cimport OFFSET_BITS
from everlog.base.records cimport Records
from everlog.mqtt.outbound cimport PublishWriter

cdef enum:
    _DONE = 0
    _SENT_1 = 1
    _SENT_2 = 2
    _RELEASED = 3
    IDS = 65535


cdef class Window:
    cdef public Py_ssize_t limit
    cdef readonly Py_ssize_t inflight, span, unknown
    cdef Py_ssize_t head
    cdef readonly int head_id
    cdef Py_ssize_t mask
    cdef bytearray states, positions, tags
    cdef readonly dict parked, parked_tags
    cdef public dict finished

    @cython.locals(free=Py_ssize_t, longest=Py_ssize_t)
    cpdef Py_ssize_t room(self) except -1

    @cython.locals(count=Py_ssize_t, used=Py_ssize_t, lengths="uint32_t*", chosen="uint32_t*", every=bint,
                   raw="unsigned char*", base=Py_ssize_t, states="unsigned char*", positions="uint64_t*",
                   tags="uint32_t*", tagged=bint, place=Py_ssize_t, kept=uint64_t, k=Py_ssize_t, i=Py_ssize_t, qos=int)
    cpdef sent(self, PublishWriter writer, Records records, rows, Py_ssize_t start, uint64_t shard, uint32_t tag=*)

    @cython.locals(ids="uint16_t*", reasons="unsigned char*", states="unsigned char*", kind=int, k=Py_ssize_t,
                   delta=Py_ssize_t, slot=Py_ssize_t, state=int, positions="uint64_t*", tags="uint32_t*", tagged=bint,
                   released=bytearray, out="uint16_t*", count=Py_ssize_t)
    cpdef bytes acked(self, AckRun run)

    @cython.locals(column="uint16_t*", found=bytearray, k=Py_ssize_t)
    cpdef bytes known(self, bytes ids)

    @cython.locals(positions="uint64_t*", k=Py_ssize_t, slot=Py_ssize_t)
    cpdef list pending(self)

    @cython.locals(positions="uint64_t*", k=Py_ssize_t)
    cpdef list newest(self, Py_ssize_t count)
    cpdef list tagged(self, uint32_t tag)

    @cython.locals(delta=Py_ssize_t, slot=Py_ssize_t)
    cpdef uint32_t tag(self, int packet_id) except? 0

    @cython.locals(delta=Py_ssize_t, slot=Py_ssize_t)
    cpdef untag(self, int packet_id)
    cpdef take_back(self, int packet_id, int state, uint64_t position, uint32_t tag=*)

    @cython.locals(out="unsigned char*", at=Py_ssize_t, positions="uint64_t*", states="unsigned char*", k=Py_ssize_t,
                   slot=Py_ssize_t, tags="uint32_t*", tagged=bint)
    cpdef bytes packed(self)

    @cython.locals(delta=Py_ssize_t, found=int)
    cpdef int state(self, int packet_id) except -1

    @cython.locals(delta=Py_ssize_t)
    cpdef forget(self, int packet_id)

    @cython.locals(size=Py_ssize_t, k=Py_ssize_t, old=Py_ssize_t)
    cdef int _grow(self, Py_ssize_t span) except -1

    @cython.locals(positions="uint64_t*", slot=Py_ssize_t)
    cdef int _park(self, Py_ssize_t count) except -1

    @cython.locals(packet_id=int, delta=Py_ssize_t, k=Py_ssize_t)
    cdef Py_ssize_t _clear_of_parked(self, Py_ssize_t free) except -1
    cdef int _finish(self, uint32_t tag, uint64_t position) except -1
    cdef int _acked_parked(self, int packet_id, int kind, int reason) except -1


cdef Py_ssize_t put_entry(unsigned char* out, Py_ssize_t at, int packet_id, int state, uint64_t position) except -1
