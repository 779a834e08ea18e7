cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport check_of, get32, get64, pointer, put32, put64
from everlog.base.topic_table cimport TopicTable

cdef class Layout
cdef class Records

cdef Py_ssize_t padded(Py_ssize_t size) noexcept nogil

cdef uint32_t marked(unsigned char* mark, uint64_t time_us, uint32_t flags) noexcept nogil

@cython.locals(kind="unsigned char", end=Py_ssize_t, size=Py_ssize_t)
cdef Py_ssize_t property_size(const unsigned char* source, Py_ssize_t position) noexcept nogil


@cython.locals(out="unsigned char*")
cpdef Records rebased(Records records, uint64_t base_offset)


cdef class Layout:
    cdef readonly Py_ssize_t times, topics, flags, property_ends, payload_ends, checks, offsets, name_ends, names
    cdef readonly Py_ssize_t properties, payloads, end


cdef class Records:
    cdef readonly object data
    cdef readonly Py_ssize_t start, size, count, new_topics, first_new_topic, name_bytes, property_bytes, payload_bytes
    cdef readonly uint64_t base_offset, end_offset, first_time, last_time
    cdef readonly bint with_properties, with_offsets
    cdef readonly Layout layout
    cdef public TopicTable table

    cpdef uint64_t offset(self, Py_ssize_t i) except? 0

    @cython.locals(raw="unsigned char*", at=Py_ssize_t, i=Py_ssize_t)
    cdef bint _offsets_rise(self) except -1

    @cython.locals(raw="unsigned char*", plan=Layout)
    cpdef bint verify_columns(self) except -1

    @cython.locals(raw="unsigned char*", plan=Layout, properties=Py_ssize_t, payloads=Py_ssize_t, ends=Py_ssize_t,
                   property_ends=Py_ssize_t, checks=Py_ssize_t, before=Py_ssize_t, property_before=Py_ssize_t,
                   check=uint32_t, i=Py_ssize_t, end=Py_ssize_t, property_end=Py_ssize_t, times=Py_ssize_t,
                   flags=Py_ssize_t, mark="unsigned char*")
    cpdef bint verify(self) except -1

    @cython.locals(raw="unsigned char*", plan=Layout, at=Py_ssize_t, payload=Py_ssize_t, here=Py_ssize_t,
                   base=Py_ssize_t)
    cpdef tuple row(self, Py_ssize_t i)

    @cython.locals(raw="unsigned char*", plan=Layout, at=Py_ssize_t, base=Py_ssize_t, i=Py_ssize_t)
    cpdef list new_names(self)

    cpdef object to_bytes(self)
