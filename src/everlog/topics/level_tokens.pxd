cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport blank, copy, filled, part, pointer, put32, u32s, u64s
from everlog.base.topic_table cimport TopicTable

cdef Py_ssize_t _FIRST_TOPICS, _KEY_BYTES, _REF_BYTES
cdef int _SLASH, _DOLLAR
cdef unsigned char _IDS, _BLOB


cdef class LevelTokens:
    cdef readonly TopicTable table
    cdef readonly Py_ssize_t count
    cdef readonly bytearray topics
    cdef bytearray tokens, order, begins, ids

    @cython.locals(token=Py_ssize_t)
    cdef int add(self, const unsigned char* names, Py_ssize_t start, Py_ssize_t size, Py_ssize_t topic) except -1

    @cython.locals(tokens="uint32_t*")
    cdef int add_again(self, Py_ssize_t topic) except -1

    @cython.locals(total=Py_ssize_t, count=Py_ssize_t, begins="uint32_t*", ids="uint32_t*", topics="uint32_t*",
                   tokens="uint32_t*", column=bytearray, spare=bytearray, keys=bytearray, order="uint32_t*",
                   other="uint32_t*", key="uint64_t*", names="unsigned char*", ends="uint32_t*", token=Py_ssize_t,
                   width=Py_ssize_t)
    cpdef sort(self)
    cpdef bytes token(self, Py_ssize_t place)
    cdef Py_ssize_t _at(self, Py_ssize_t place) except -1

    @cython.locals(begins="uint32_t*", place=Py_ssize_t, token=Py_ssize_t)
    cpdef list many(self, Py_ssize_t first, Py_ssize_t stop, Py_ssize_t few)

    @cython.locals(begins="uint32_t*", ends="uint32_t*", size=Py_ssize_t, token_bytes=Py_ssize_t, place=Py_ssize_t,
                   token=Py_ssize_t, ids=Py_ssize_t, count=Py_ssize_t, tokens_at=Py_ssize_t, postings_at=Py_ssize_t,
                   out="unsigned char*", names="unsigned char*", source="unsigned char*", token_end=Py_ssize_t,
                   end=Py_ssize_t, ref_at=Py_ssize_t)
    cpdef bytes block(self, Py_ssize_t first, Py_ssize_t stop, Py_ssize_t few, bytes refs)


cdef class TopicTokens:
    cdef readonly Py_ssize_t count
    cdef readonly list levels, dollar

    @cython.locals(source="unsigned char*", ends="uint32_t*", topic=Py_ssize_t, start=Py_ssize_t, name_end=Py_ssize_t,
                   same_end=Py_ssize_t,                   number=Py_ssize_t, end=Py_ssize_t, level=LevelTokens)
    cpdef extend(self, TopicTable table, Py_ssize_t stop)


@cython.locals(one=Py_ssize_t, two=Py_ssize_t, most=Py_ssize_t, count=Py_ssize_t)
cdef Py_ssize_t shared(const unsigned char* names, uint32_t* ends, Py_ssize_t topic) noexcept nogil

@cython.locals(i=Py_ssize_t, token=Py_ssize_t)
cdef void group(uint32_t* begins, uint32_t* ids, uint32_t* topics, uint32_t* tokens, Py_ssize_t total,
                Py_ssize_t count) noexcept nogil

@cython.locals(begin=Py_ssize_t, middle=Py_ssize_t, end=Py_ssize_t, one=Py_ssize_t, two=Py_ssize_t, at=Py_ssize_t)
cdef void merge_runs(uint32_t* order, uint32_t* other, Py_ssize_t total, Py_ssize_t width, uint64_t* keys,
                     const unsigned char* names, uint32_t* ends) noexcept nogil

@cython.locals(one_at=Py_ssize_t, two_at=Py_ssize_t, one_end=Py_ssize_t, two_end=Py_ssize_t, key=uint64_t,
               other=uint64_t)
cdef bint is_before(Py_ssize_t one, Py_ssize_t two, uint64_t* keys, const unsigned char* names,
                    uint32_t* ends) noexcept nogil

@cython.locals(key=uint64_t, i=Py_ssize_t)
cdef uint64_t key_of(const unsigned char* names, Py_ssize_t start, Py_ssize_t end) noexcept nogil
