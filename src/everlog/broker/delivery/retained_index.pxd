cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport copy, pointer, put64, resize, u32s, u64s
from everlog.base.topic_table cimport TopicTable
from everlog.topics.token_postings cimport TokenPostings

cdef uint64_t NOWHERE
cdef uint32_t NOBODY
cdef Py_ssize_t _FIRST_SLOTS, _NAMED_BYTES


cdef class RetainedIndex:
    cdef readonly TopicTable names, clients
    cdef readonly TokenPostings postings
    cdef readonly bytearray numbers, places, publishers, marks
    cdef Py_ssize_t capacity

    @cython.locals(slot=Py_ssize_t)
    cdef Py_ssize_t add(self, const unsigned char* source, Py_ssize_t start, Py_ssize_t size, uint64_t number,
                        uint64_t place, uint32_t publisher, bint is_new=*) except -2

    @cython.locals(more=Py_ssize_t)
    cdef int _grow(self) except -1

    @cython.locals(numbers="uint64_t*", begin=Py_ssize_t, end=Py_ssize_t, middle=Py_ssize_t)
    cdef Py_ssize_t lower(self, uint64_t number) except -1

    @cython.locals(slot=Py_ssize_t)
    cpdef Py_ssize_t slot_of(self, uint64_t number) except -2

    @cython.locals(names=TopicTable, ends="uint32_t*", numbers="uint64_t*", places="uint64_t*", first=Py_ssize_t,
                   size=Py_ssize_t, slot=Py_ssize_t, block=bytearray, out="unsigned char*", source="unsigned char*",
                   at=Py_ssize_t)
    cpdef bytes names_from(self, uint64_t number)
