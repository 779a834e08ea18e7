cimport cython
from libc.stdint cimport uint32_t

from everlog.base.memory cimport pointer, resize, u32s
from everlog.base.topic_table cimport TopicTable

cdef Py_ssize_t _HEAD_WORDS, _SLICE_IDS, _FIRST_WORDS, _FEW_IDS, _LEAPS
cdef int _SLASH, _PLUS, _HASH, _DOLLAR


@cython.final
cdef class IdCursor:
    cdef Py_ssize_t place, left, slice_ids, slice_end


cdef class TokenWalk:
    cdef readonly bytes pattern
    cdef readonly bint is_over
    cdef Py_ssize_t at
    cdef IdCursor ids, others

    @cython.locals(ends="uint32_t*")
    cpdef bint matches(self, TopicTable table, Py_ssize_t topic) except -1


cdef class TokenPostings:
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t used
    cdef bytearray words
    cdef list tables, heads

    @cython.locals(ends="uint32_t*", names="unsigned char*", start=Py_ssize_t, stop=Py_ssize_t, end=Py_ssize_t,
                   level=Py_ssize_t, tokens=TopicTable, token=Py_ssize_t)
    cpdef int add(self, TopicTable table, Py_ssize_t topic) except -1

    @cython.locals(heads=bytearray, h=Py_ssize_t, head="uint32_t*", place=Py_ssize_t)
    cdef int _append(self, Py_ssize_t level, Py_ssize_t token, Py_ssize_t topic) except -1

    @cython.locals(ids=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t)
    cdef Py_ssize_t _begin_slice(self, uint32_t* head, Py_ssize_t h) except -1

    @cython.locals(pattern="unsigned char*", size=Py_ssize_t, level=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t,
                   token=Py_ssize_t, head="uint32_t*", ids=IdCursor, others=IdCursor, one=IdCursor)
    cpdef int begin(self, TokenWalk walk, Py_ssize_t first) except -1

    @cython.locals(tokens=TopicTable)
    cdef Py_ssize_t _token(self, Py_ssize_t level, const unsigned char* pattern, Py_ssize_t start,
                           Py_ssize_t end) except -2

    @cython.locals(word="uint32_t*", here=Py_ssize_t)
    cdef int _skip(self, IdCursor ids, Py_ssize_t first) except -1
    cdef int _next_slice(self, IdCursor ids) except -1

    @cython.locals(topic=Py_ssize_t, ids=IdCursor, others=IdCursor, word="uint32_t*", _=Py_ssize_t)
    cpdef Py_ssize_t step(self, TokenWalk walk) except -2


@cython.locals(i=Py_ssize_t, j=Py_ssize_t)
cdef bint name_matches(const unsigned char* pattern, Py_ssize_t size, const unsigned char* names, Py_ssize_t start,
                       Py_ssize_t stop) noexcept nogil
