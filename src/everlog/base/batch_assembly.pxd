cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport blank, check_of, copy, filled, get32, pointer, put32, u32s
from everlog.base.records cimport Layout, Records, marked, pad
from everlog.base.topic_table cimport TopicTable


cdef enum:  # of records
    WITH_PROPERTIES = 0x01
    WITH_OFFSETS = 0x02


@cython.locals(count=Py_ssize_t, with_offsets=bint, with_properties=bint, kind=uint32_t, plan=Layout, out="unsigned char*")
cpdef Records assemble(uint64_t base_offset, uint64_t first_time, object offsets, object times, object topics,
                       object flags, object property_ends, object properties, object payload_ends, object payloads,
                       TopicTable table)

@cython.locals(numbers="uint32_t*", before=uint32_t, i=Py_ssize_t)
cdef int _check_ends(object ends, Py_ssize_t count, Py_ssize_t limit) except -1

@cython.locals(ids="uint32_t*", deltas="uint32_t*", places="uint32_t*", i=Py_ssize_t)
cdef int _check_rows(object topics, object times, object offsets, Py_ssize_t count, Py_ssize_t known) except -1

cdef int _column(unsigned char* out, Py_ssize_t at, const unsigned char* source, Py_ssize_t size) except -1

@cython.locals(holder=bytearray, mark="unsigned char*", before=Py_ssize_t, property_before=Py_ssize_t,
               end=Py_ssize_t, i=Py_ssize_t, check=uint32_t)
cdef int _write_checks(unsigned char* out, Layout plan, uint64_t first_time, Py_ssize_t count,
                       bint with_properties) except -1
