cimport cython
from libc.stdint cimport uint16_t, uint32_t

from everlog.base.columns cimport MessageColumns
from everlog.base.memory cimport copy, get32, pointer, put32, u16s, u32s
from everlog.base.records cimport Layout, Records

cdef uint32_t _NOBODY


@cython.locals(columns=MessageColumns, source=bytearray, size=Py_ssize_t)
cpdef MessageColumns columns_of(Records records)

@cython.locals(start=Py_ssize_t, topics="uint32_t*", flags="unsigned char*", ids="uint16_t*",
               property_starts="uint32_t*", payload_starts="uint32_t*", payload_ends="uint32_t*",
               with_properties=bint, property_at=Py_ssize_t, payload_at=Py_ssize_t, at=Py_ssize_t, i=Py_ssize_t,
               end=Py_ssize_t)
cdef int _fill(Records records, Layout plan, const unsigned char* raw, MessageColumns columns,
               unsigned char* out) except -1

@cython.locals(i=Py_ssize_t, number=uint32_t)
cdef int _place(const unsigned char* raw, Py_ssize_t at, Py_ssize_t count, uint32_t known,
                unsigned char* out) except -1
