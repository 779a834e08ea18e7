cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport (
    advise_large_pages, blank, cleared, copy, equal, filled, hash_of, part, pointer, prefetch, put32, resize, u32s, u64s,
)

cdef Py_ssize_t ABSENT, _FIRST_SLOTS, _LEAST_NAMES, _AHEAD
cdef uint64_t _ID_MASK


cdef class TopicTable:
    cdef public uint64_t seed
    cdef public Py_ssize_t max_topics, max_bytes, generation, count, name_bytes
    cdef readonly bint in_order
    cdef Py_ssize_t last, placed
    cdef uint32_t mask
    cdef readonly bytearray names, ends
    cdef public TopicTable publishers
    cdef bytearray slots

    @cython.locals(ends="uint32_t*")
    cpdef bytes name(self, Py_ssize_t topic)

    @cython.locals(ends="uint32_t*", begin=uint32_t, size=Py_ssize_t, out="unsigned char*", topic=Py_ssize_t)
    cpdef bytes packed(self, Py_ssize_t first, Py_ssize_t stop)

    @cython.locals(names="unsigned char*", ends="uint32_t*", slots="uint64_t*", code=uint32_t, slot=uint32_t,
                   topic=Py_ssize_t, at=Py_ssize_t)
    cdef Py_ssize_t find(self, const unsigned char* source, Py_ssize_t start, Py_ssize_t size) except -2

    @cython.locals(topic=Py_ssize_t)
    cdef Py_ssize_t find_or_add(self, const unsigned char* source, Py_ssize_t start, Py_ssize_t size) except -2

    @cython.locals(topic=Py_ssize_t)
    cdef Py_ssize_t add(self, const unsigned char* source, Py_ssize_t start, Py_ssize_t size) except -2

    @cython.locals(topic=Py_ssize_t)
    cdef Py_ssize_t append(self, const unsigned char* source, Py_ssize_t start, Py_ssize_t size) except -2

    @cython.locals(start=Py_ssize_t, size=Py_ssize_t, new=Py_ssize_t, code=uint64_t, slots="uint64_t*", slot=uint32_t)
    cpdef Py_ssize_t renew(self, Py_ssize_t topic) except -2

    cdef int _place(self, Py_ssize_t topic, uint64_t code) except -1

    @cython.locals(ends="uint32_t*", names="unsigned char*", topic=Py_ssize_t, ahead=Py_ssize_t)
    cpdef int place_rest(self) except -1
    cdef int expect(self, const unsigned char* source, Py_ssize_t start, Py_ssize_t size) except -1

    @cython.locals(before=bytearray, used="uint64_t*", slot=Py_ssize_t)
    cdef int _add_slots(self) except -1
    cdef int _make_room(self, Py_ssize_t size) except -1


@cython.locals(table=TopicTable, name=bytes)
cpdef TopicTable table_of(object names)


@cython.locals(slots="uint64_t*", slot=uint32_t)
cdef int put(bytearray column, uint32_t mask, uint64_t entry) except -1
