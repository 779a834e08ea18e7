cimport cython
from libc.stdint cimport uint16_t, uint32_t

from everlog.base.columns cimport MessageColumns
from everlog.base.memory cimport copy, get32, pointer, put32, u16s, u32s
from everlog.base.records cimport Layout, Records
from everlog.base.topic_table cimport TopicTable

cdef uint32_t _NOBODY


@cython.locals(raw="const unsigned char*", before=Py_ssize_t, end=Py_ssize_t, i=Py_ssize_t)
cdef int _learn(TopicTable table, Records records, Py_ssize_t new, Py_ssize_t ends, Py_ssize_t names,
                Py_ssize_t size) except -1

@cython.locals(columns=MessageColumns, plan=Layout, raw="unsigned char*", source=bytearray)
cpdef MessageColumns columns_of(Records records)

@cython.locals(start=Py_ssize_t, topics="uint32_t*", flags="unsigned char*", ids="uint16_t*",
               property_starts="uint32_t*", payload_starts="uint32_t*", payload_ends="uint32_t*",
               with_properties=bint, property_at=Py_ssize_t, payload_at=Py_ssize_t, at=Py_ssize_t, i=Py_ssize_t,
               end=Py_ssize_t)
cdef int _fill(Records records, Layout plan, const unsigned char* raw, MessageColumns columns,
               unsigned char* out, Py_ssize_t first) except -1

@cython.locals(i=Py_ssize_t)
cdef bint _are_first(const unsigned char* raw, Py_ssize_t at, Py_ssize_t count) except -1

@cython.locals(i=Py_ssize_t, number=uint32_t)
cdef int _place(const unsigned char* raw, Py_ssize_t at, Py_ssize_t count, uint32_t known,
                unsigned char* out) except -1
