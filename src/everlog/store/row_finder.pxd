cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport check_of, copy, get32, get64, pointer, u32s, u64s
from everlog.base.topic_table cimport TopicTable
from everlog.store.mapped_memory cimport address, ahead, faulted, unguard
from everlog.store.row_postings cimport entry_check

cdef uint32_t _MAGIC, _VERSION
cdef Py_ssize_t _HEADER_BYTES, _ENTRY_BYTES, _MARK_BYTES, _DIGIT_BITS, _DIGITS, _AHEAD


@cython.final
cdef class RowFinder:
    cdef const unsigned char[::1] postings
    cdef const unsigned char* raw
    cdef readonly Py_ssize_t size, topics, rows
    cdef Py_ssize_t rows_at, names_at, name_bytes

    cdef int _copy_header(self, unsigned char* target) noexcept nogil

    @cython.locals(wanted=Py_ssize_t, chosen="uint32_t*", holder=bytearray, mark="unsigned char*", ends=bytearray,
                   end="uint64_t*", total=Py_ssize_t, names=bytearray, room="unsigned char*", table=TopicTable,
                   k=Py_ssize_t)
    cpdef object choose(self, bytearray ids)

    @cython.locals(wanted=Py_ssize_t, chosen="uint32_t*", ranges=bytearray,
                   bounds="uint32_t*", total=Py_ssize_t, found=bytearray, rows="uint64_t*", lost=int)
    cpdef object find(self, bytearray ids, Py_ssize_t first, Py_ssize_t stop)

    @cython.locals(wanted=Py_ssize_t, chosen="uint32_t*", total=Py_ssize_t)
    cpdef Py_ssize_t count(self, bytearray ids) except? -1

    @cython.locals(total=Py_ssize_t, k=Py_ssize_t)
    cdef Py_ssize_t _count(self, uint32_t* chosen, Py_ssize_t wanted) noexcept nogil

    @cython.locals(k=Py_ssize_t)
    cdef int _check_ids(self, uint32_t* chosen, Py_ssize_t wanted) except -1

    cdef Py_ssize_t _begin(self, Py_ssize_t topic, Py_ssize_t field) noexcept nogil
    cdef Py_ssize_t _end(self, Py_ssize_t topic, Py_ssize_t field) noexcept nogil
    cdef bint _inside(self, Py_ssize_t topic) noexcept nogil

    @cython.locals(begin=Py_ssize_t, end=Py_ssize_t, name_begin=Py_ssize_t, name_end=Py_ssize_t, check=uint32_t)
    cdef bint _checked(self, Py_ssize_t topic, unsigned char* mark) noexcept nogil

    @cython.locals(k=Py_ssize_t, topic=Py_ssize_t)
    cdef Py_ssize_t _measure(self, uint32_t* chosen, Py_ssize_t wanted, uint64_t* end) noexcept nogil

    @cython.locals(total=Py_ssize_t, k=Py_ssize_t, topic=Py_ssize_t, begin=Py_ssize_t)
    cdef Py_ssize_t _copy_names(self, uint32_t* chosen, Py_ssize_t wanted, uint64_t* end, unsigned char* room,
                                unsigned char* mark) noexcept nogil

    @cython.locals(total=Py_ssize_t, k=Py_ssize_t, topic=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t _bound(self, uint32_t* chosen, Py_ssize_t wanted, Py_ssize_t first, Py_ssize_t stop,
                           uint32_t* bounds) noexcept nogil

    @cython.locals(middle=Py_ssize_t)
    cdef Py_ssize_t _lower(self, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t row) noexcept nogil

    @cython.locals(at=Py_ssize_t, k=Py_ssize_t, place=Py_ssize_t, row=uint64_t)
    cdef int _fill(self, Py_ssize_t wanted, uint32_t* bounds, uint64_t* rows) noexcept nogil


@cython.locals(flags=bytearray, flag="unsigned char*", chosen="uint32_t*", k=Py_ssize_t)
cpdef bytearray to_flags(bytearray ids, Py_ssize_t total)

@cython.locals(total=Py_ssize_t, spare=bytearray, rows="uint64_t*", other="uint64_t*", counters=bytearray,
               counts="uint32_t*", shift=int)
cpdef bytearray sort_rows(bytearray found, Py_ssize_t first, Py_ssize_t stop)

@cython.locals(digit=Py_ssize_t, i=Py_ssize_t, place=uint32_t, here=uint32_t)
cdef void sort_digit(uint64_t* rows, uint64_t* other, Py_ssize_t total, Py_ssize_t first, int shift,
                     uint32_t* counts) noexcept nogil
