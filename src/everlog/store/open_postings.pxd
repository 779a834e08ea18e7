cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport get32, pointer, u32s, u64s
from everlog.base.records cimport Records
from everlog.store.row_finder cimport sort_rows

cdef Py_ssize_t _HEAD_WORDS, _SLICE_ROWS, _FIRST_WORDS, _ROW_BYTES


@cython.final
cdef class OpenPostings:
    cdef readonly Py_ssize_t rows, topics
    cdef Py_ssize_t used
    cdef bytearray heads, words

    @cython.locals(raw="unsigned char*", at=Py_ssize_t, known=Py_ssize_t, topics=Py_ssize_t, topic=Py_ssize_t,
                   i=Py_ssize_t, head="uint32_t*", word="uint32_t*", row=Py_ssize_t, h=Py_ssize_t, place=uint32_t)
    cpdef Py_ssize_t add(self, Records records) except -1

    @cython.locals(need=Py_ssize_t)
    cdef int _reserve(self, Py_ssize_t topics) except -1

    @cython.locals(rows=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t)
    cdef Py_ssize_t _begin_slice(self, uint32_t* head, Py_ssize_t h) except -1

    @cython.locals(chosen="uint32_t*", head="uint32_t*", total=Py_ssize_t, k=Py_ssize_t)
    cpdef Py_ssize_t count(self, bytearray ids) except? -1

    @cython.locals(chosen="uint32_t*", wanted=Py_ssize_t, total=Py_ssize_t, k=Py_ssize_t, found=bytearray,
                   at=Py_ssize_t)
    cpdef bytearray find(self, bytearray ids, Py_ssize_t first, Py_ssize_t stop)

    @cython.locals(head="uint32_t*", word="uint32_t*", left=Py_ssize_t, place=Py_ssize_t, size=Py_ssize_t,
                   total=Py_ssize_t, here=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t _walk(self, Py_ssize_t topic, Py_ssize_t first, Py_ssize_t stop, bytearray found,
                          Py_ssize_t at) except -1

    @cython.locals(word="uint32_t*", middle=Py_ssize_t)
    cdef Py_ssize_t _lower(self, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t row) noexcept

    @cython.locals(word="uint32_t*", out="uint64_t*", place=Py_ssize_t, row=uint64_t)
    cdef int _write(self, Py_ssize_t topic, Py_ssize_t begin, Py_ssize_t end, bytearray found,
                    Py_ssize_t at) except -1


@cython.locals(rows=bytearray, source="uint64_t*", target="uint32_t*", raw="unsigned char*", payloads=Py_ssize_t,
               properties=Py_ssize_t, size=Py_ssize_t, taken=Py_ssize_t, k=Py_ssize_t, row=Py_ssize_t, more=Py_ssize_t)
cpdef tuple pick(bytearray found, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t first, Records records,
                 Py_ssize_t max_bytes)
