cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport blank, check_of, copy, filled, pointer, put32, put64, u32s
from everlog.base.topic_table cimport TopicTable

cdef uint32_t _MAGIC, _VERSION
cdef Py_ssize_t _HEADER_BYTES, _ENTRY_BYTES, _MARK_BYTES


@cython.locals(topics=Py_ssize_t, counts=bytearray, rows=Py_ssize_t, rows_at=Py_ssize_t, names_at=Py_ssize_t,
               out="unsigned char*", next_place="uint32_t*", place=uint32_t, here=uint32_t, topic=Py_ssize_t,
               first=Py_ssize_t)
cpdef bytes build_row_postings(TopicTable names, object batch_topics)

@cython.locals(ids="const uint32_t[::1]", count="uint32_t*", total=Py_ssize_t, i=Py_ssize_t, topic=Py_ssize_t)
cdef Py_ssize_t count_topics(object column, bytearray counts, Py_ssize_t topics) except -1

@cython.locals(ids="const uint32_t[::1]", place="uint32_t*", total=Py_ssize_t, i=Py_ssize_t, topic=Py_ssize_t)
cdef Py_ssize_t place_rows(object column, bytearray places, unsigned char* out, Py_ssize_t rows_at,
                           Py_ssize_t first) except -1

@cython.locals(mark="unsigned char*", end="uint32_t*", name_ends="uint32_t*", begin=uint32_t, name_begin=uint32_t,
               topic=Py_ssize_t, stop=uint32_t, name_end=uint32_t, check=uint32_t, at=Py_ssize_t)
cdef int write_entries(TopicTable names, bytearray ends, unsigned char* out, Py_ssize_t rows_at,
                       Py_ssize_t names_at) except -1

cdef uint32_t entry_check(unsigned char* mark, uint32_t topic, uint32_t begin, uint32_t end, uint32_t name_begin,
                          uint32_t name_end) noexcept nogil
