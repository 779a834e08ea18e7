cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport check_of, copy, get32, get64, pointer, put32, u32s, u64s
from everlog.base.records cimport Layout, Records, marked
from everlog.base.topic_table cimport TopicTable
from everlog.broker.delivery.retained_chunks cimport AT_MASK, ENTRY_BYTES, RetainedChunks
from everlog.broker.delivery.retained_index cimport NOWHERE, RetainedIndex
from everlog.topics.token_postings cimport TokenPostings, TokenWalk

cdef enum:
    HAS_EXPIRY = 0x10

cdef uint64_t _BASE, _HALF_SPAN_US
cdef uint32_t _WITH_PROPERTIES, _WITH_OFFSETS


cdef class RetainedWalk:
    cdef readonly TokenWalk tokens
    cdef readonly bint is_exact, is_over
    cdef readonly uint64_t at, end
    cdef public int min_qos
    cdef public bytes not_from
    cdef public bint with_times
    cdef RetainedIndex index

    cpdef go_back(self, uint64_t number)


cdef class RetainedReader:
    cdef public RetainedIndex index
    cdef RetainedChunks chunks
    cdef bytearray _mark, _one

    cpdef Records one(self, Py_ssize_t slot, bint named)

    @cython.locals(index=RetainedIndex, rows=bytearray, out="uint32_t*", numbers="uint64_t*", places="uint64_t*",
                   publishers="uint32_t*", besides=Py_ssize_t, count=Py_ssize_t, size=Py_ssize_t, base=uint64_t,
                   first=uint64_t, _=Py_ssize_t, slot=Py_ssize_t, raw="unsigned char*", at=Py_ssize_t, flags=uint32_t,
                   time_us=uint64_t)
    cpdef Records collect(self, RetainedWalk walk, Py_ssize_t max_rows, Py_ssize_t max_bytes, Py_ssize_t max_looks)

    @cython.locals(slot=Py_ssize_t)
    cdef int _begin_exact(self, RetainedWalk walk) except -1
    cdef Py_ssize_t _step(self, RetainedWalk walk) except -2

    @cython.locals(index=RetainedIndex, numbers="uint64_t*", places="uint64_t*", property_bytes=Py_ssize_t,
                   payload_bytes=Py_ssize_t, k=Py_ssize_t, raw="unsigned char*", at=Py_ssize_t, first=uint64_t,
                   names=TopicTable, name_ends="uint32_t*", name_at=Py_ssize_t, name_bytes=Py_ssize_t, kind=uint32_t,
                   plan=Layout, block=bytearray, out="unsigned char*", mark="unsigned char*", payload_at=Py_ssize_t,
                   property_at=Py_ssize_t, last=uint64_t, slot=Py_ssize_t, time_us=uint64_t, properties=Py_ssize_t,
                   payload=Py_ssize_t, flags=uint32_t, check=uint32_t)
    cdef Records _gather(self, uint32_t* slots, Py_ssize_t count, bint exact, bint named)


cdef bint _is_far(uint64_t first, uint64_t time_us) noexcept nogil
