cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport check_of, get32, get64, pointer, put32, put64
from everlog.base.topic_table cimport TopicTable

cdef class Layout
cdef class Records

cdef Py_ssize_t _HEADER
cdef Py_ssize_t _PUBLISHER_HEAD
cdef uint32_t _PROPERTIES, _OFFSETS, _PUBLISHERS, _PACKET_IDS, _NOBODY, _NEWEST, _PAYLOADS_LAST

cdef Py_ssize_t padded(Py_ssize_t size) noexcept nogil

@cython.locals(i=Py_ssize_t)
cdef int pad(unsigned char* out, Py_ssize_t at) noexcept nogil

cdef uint32_t marked(unsigned char* mark, uint64_t time_us, uint32_t flags) noexcept nogil

@cython.locals(kind="unsigned char", end=Py_ssize_t, size=Py_ssize_t)
cdef Py_ssize_t property_size(const unsigned char* source, Py_ssize_t position) noexcept nogil


@cython.locals(out="unsigned char*")
cpdef Records rebased(Records records, uint64_t base_offset)


cdef class Layout:
    cdef readonly Py_ssize_t count, new, name_bytes, property_bytes, payload_bytes
    cdef readonly Py_ssize_t columns, times, topics, flags, property_ends, payload_ends, checks, offsets, name_ends
    cdef readonly Py_ssize_t names, columns_end, properties, payloads, end, publishers, packet_ids
    cdef readonly uint32_t kind, new_publishers, publisher_bytes, first_publisher

    cdef int name_publishers(self, uint32_t new, uint32_t name_bytes, uint32_t first) except -1

    cpdef Py_ssize_t publisher_ends(self)

    @cython.locals(ends=Py_ssize_t)
    cpdef Py_ssize_t publisher_names(self)

    @cython.locals(head=Py_ssize_t)
    cdef int seal(self, unsigned char* out, uint64_t base_offset, uint64_t first_time, uint64_t last_time,
                  uint32_t first_new_topic) except -1

    @cython.locals(check=uint32_t)
    cdef uint32_t check(self, const unsigned char* raw, Py_ssize_t start) noexcept nogil


cdef class Records:
    cdef readonly object data
    cdef readonly Py_ssize_t start, size, count, new_topics, first_new_topic, name_bytes, property_bytes, payload_bytes
    cdef readonly uint64_t base_offset, end_offset, first_time, last_time
    cdef readonly bint with_properties, with_offsets
    cdef readonly Layout layout
    cdef public TopicTable table

    cpdef uint64_t offset(self, Py_ssize_t i) except? 0

    @cython.locals(raw="unsigned char*")
    cpdef bint verify_columns(self) except -1

    @cython.locals(raw="unsigned char*", mark="unsigned char*", whole=bint)
    cpdef bint verify(self) except -1

    @cython.locals(properties=Py_ssize_t, payloads=Py_ssize_t, ends=Py_ssize_t, property_ends=Py_ssize_t,
                   checks=Py_ssize_t, before=Py_ssize_t, property_before=Py_ssize_t, check=uint32_t, i=Py_ssize_t,
                   end=Py_ssize_t, property_end=Py_ssize_t, times=Py_ssize_t, flags=Py_ssize_t)
    cdef bint _whole(self, const unsigned char* raw, unsigned char* mark) noexcept nogil

    @cython.locals(i=Py_ssize_t)
    cdef bint _is_padded(self, const unsigned char* raw, Py_ssize_t at) noexcept nogil

    @cython.locals(at=Py_ssize_t, i=Py_ssize_t)
    cdef bint _offsets_rise(self, const unsigned char* raw) noexcept nogil

    @cython.locals(raw="unsigned char*", plan=Layout, at=Py_ssize_t, payload=Py_ssize_t, here=Py_ssize_t,
                   base=Py_ssize_t)
    cpdef tuple row(self, Py_ssize_t i)

    @cython.locals(raw="unsigned char*", plan=Layout, at=Py_ssize_t, base=Py_ssize_t, i=Py_ssize_t)
    cpdef list new_names(self)

    cpdef uint32_t publisher(self, Py_ssize_t i) except? 0

    @cython.locals(raw="unsigned char*", at=Py_ssize_t)
    cpdef int packet_id(self, Py_ssize_t i) except -1

    @cython.locals(raw="unsigned char*", at=Py_ssize_t, base=Py_ssize_t, i=Py_ssize_t)
    cpdef list new_publishers(self)

    cpdef object view(self)
    cpdef object to_bytes(self)


@cython.locals(version=uint32_t, kind=uint32_t, known=uint32_t)
cdef Layout _layout_at(const unsigned char* raw, Py_ssize_t start)

@cython.locals(head=Py_ssize_t)
cdef int _read_publishers(Layout plan, const unsigned char* raw, Py_ssize_t start, Py_ssize_t size) except -1

@cython.locals(end=Py_ssize_t)
cdef Py_ssize_t _columns_end(Layout plan, const unsigned char* header) except -1

@cython.locals(plan=Layout)
cpdef tuple columns_range(object header)

@cython.locals(raw="unsigned char*", plan=Layout, check=uint32_t, topics=Py_ssize_t, flags=Py_ssize_t)
cpdef object checked_columns(object header, bytes columns)
