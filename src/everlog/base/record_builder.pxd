cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.block_pool cimport BlockPool
from everlog.base.columns cimport MessageColumns
from everlog.base.memory cimport address, check_of, copy, get32, pointer, pointer_at, resize, room, u32s
from everlog.base.publisher_rows cimport PublisherRows, write_names
from everlog.base.records cimport Layout, Records, marked, pad, property_size
from everlog.base.topic_table cimport TopicTable

cdef enum:  # of columns and records
    DROPPED = 0x80
    FOR_SESSIONS = 0x08
    FOR_SPILL = 0x40
    HAS_ALIAS = 0x20
    HEADER_BYTES = 64
    MAX_BATCH_BYTES = 0x7FFFFFFF
    WITH_PROPERTIES = 0x01

cdef Py_ssize_t _HANDED_BYTES, _PAGE_BYTES, _ROW_BYTES


cdef class RecordBuilder:
    cdef readonly TopicTable table
    cdef readonly bint checked
    cdef readonly Py_ssize_t count, named, property_bytes, payload_bytes
    cdef readonly uint64_t first_time
    cdef public uint64_t last_time
    cdef public uint64_t place
    cdef readonly BlockPool pool
    cdef readonly Py_ssize_t begin, free, slack, least_bytes
    cdef bint is_pooled, one_source
    cdef TopicTable source_table
    cdef Py_ssize_t source_generation, capacity
    cdef PublisherRows who
    cdef bytearray mark, ids, times, topics, flags, property_ends, payload_ends, checks, properties, block

    @cython.locals(count=Py_ssize_t, source="unsigned char*", in_topics="uint32_t*", in_flags="unsigned char*",
                   in_properties="uint32_t*", in_payloads="uint32_t*", in_ends="uint32_t*", previous=Py_ssize_t, end=Py_ssize_t,
                   property_bytes=Py_ssize_t, payload_bytes=Py_ssize_t, known=Py_ssize_t,
                   times="uint32_t*", topics="uint32_t*", flags="unsigned char*", property_ends="uint32_t*",
                   payload_ends="uint32_t*", checks="uint32_t*", properties="unsigned char*",
                   payloads="unsigned char*", payloads_at=Py_ssize_t, ids="uint32_t*", route="unsigned char*", filtered=bint, checked=bint,
                   delta=uint32_t, at=Py_ssize_t, property_at=Py_ssize_t, payload_at=Py_ssize_t, i=Py_ssize_t,
                   topic=Py_ssize_t, flag="unsigned char", begin=Py_ssize_t, middle=Py_ssize_t, size=Py_ssize_t,
                   check=uint32_t, mark="unsigned char*", stored="unsigned char", marks="unsigned char",
                   room=Py_ssize_t, taken=Py_ssize_t)
    cpdef Py_ssize_t append(self, MessageColumns columns, Py_ssize_t start, Py_ssize_t stop, uint64_t now_us,
                            TopicTable table, bytearray routes=*, int wanted=*, object publisher=*) except -1

    cpdef Py_ssize_t content_bytes(self)

    cdef int _clear(self) except -1
    cdef int _bind(self, TopicTable table) except -1
    @cython.locals(ends="uint32_t*")
    cdef uint32_t _name(self, TopicTable table, Py_ssize_t topic) except? 0

    @cython.locals(need=Py_ssize_t, grown=Py_ssize_t, more=Py_ssize_t, size=Py_ssize_t)
    cdef int _reserve(self, Py_ssize_t count, Py_ssize_t property_bytes, Py_ssize_t payload_bytes) except -1

    @cython.locals(block=bytearray, begin=Py_ssize_t)
    cdef int _move(self, Py_ssize_t size, Py_ssize_t first) except -1

    cdef Py_ssize_t _aligned(self, Py_ssize_t at) except -1

    @cython.locals(more=Py_ssize_t)
    cpdef bint has_room(self, MessageColumns columns, Py_ssize_t start, Py_ssize_t stop) except -1
    cdef Py_ssize_t _room_end(self) except -1

    @cython.locals(out=Py_ssize_t, position=Py_ssize_t, size=Py_ssize_t)
    cdef Py_ssize_t _without_alias(self, const unsigned char* source, Py_ssize_t begin, Py_ssize_t middle,
                                   unsigned char* target, Py_ssize_t at) noexcept

    @cython.locals(count=Py_ssize_t, new=Py_ssize_t, names_at=Py_ssize_t, name_bytes=Py_ssize_t, last_time=uint64_t,
                   property_bytes=Py_ssize_t, payload_bytes=Py_ssize_t, plan=Layout, block=bytearray,
                   out="unsigned char*", records=Records, kind=uint32_t, begin=Py_ssize_t)
    cpdef Records take(self, uint64_t base_offset, Py_ssize_t rows=*)

    cdef bint _is_handed(self, Layout plan) except -1

    @cython.locals(block=bytearray, own=bytearray, rest=Py_ssize_t, handed=bint)
    cdef bytearray _block(self, Layout plan)

    @cython.locals(records=Records)
    cdef Records _made(self, bytearray block, Py_ssize_t begin, uint64_t base_offset, Layout plan, uint64_t last_time)

    @cython.locals(times="uint32_t*", property_ends="uint32_t*", payload_ends="uint32_t*", ahead=uint32_t,
                   i=Py_ssize_t)
    cdef int _drop(self, Py_ssize_t count, uint32_t property_bytes, uint32_t payload_bytes) except -1

    cdef int _column(self, unsigned char* out, Py_ssize_t at, const unsigned char* source, Py_ssize_t size) except -1
