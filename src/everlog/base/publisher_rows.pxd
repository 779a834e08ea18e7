cimport cython
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from everlog.base.columns cimport MessageColumns
from everlog.base.memory cimport copy, pointer, put32, u16s, u32s
from everlog.base.publisher_name cimport PublisherColumn, PublisherName
from everlog.base.records cimport Layout, pad
from everlog.base.topic_table cimport TopicTable

cdef enum:  # of columns and records
    DROPPED = 0x80
    WITH_PUBLISHERS = 0x04
    WITH_PACKET_IDS = 0x08

cdef extern from *:
    """
    #define EVERLOG_NO_PUBLISHER 0xFFFFFFFFu
    """
    uint32_t NO_PUBLISHER "EVERLOG_NO_PUBLISHER"


cdef class PublisherRows:
    cdef bytearray publishers, packet_ids
    cdef bint with_ids
    cdef Py_ssize_t named
    cdef uint64_t segment

    cdef int start_segment(self) except -1
    cdef continue_segment(self, TopicTable table, list names)
    cdef uint32_t kind(self, TopicTable table) noexcept
    cdef Py_ssize_t width(self, TopicTable table) noexcept
    cdef int clear(self) except -1
    cdef int drop(self, Py_ssize_t rows) except -1

    @cython.locals(number=uint32_t, one=PublisherName, column=PublisherColumn, who="uint32_t*", i=Py_ssize_t)
    cdef int note(self, TopicTable table, Py_ssize_t first, Py_ssize_t end, MessageColumns columns, Py_ssize_t start,
                  Py_ssize_t stop, bytearray routes, int wanted, object publisher) except -1

    @cython.locals(known=Py_ssize_t, places="uint32_t*", who="uint32_t*", keeps_ids=bint, at=Py_ssize_t, i=Py_ssize_t,
                   one=PublisherName)
    cdef int _note_each(self, TopicTable publishers, Py_ssize_t first, MessageColumns columns, Py_ssize_t start,
                        Py_ssize_t stop, bytearray routes, int wanted, PublisherColumn column) except -1

    @cython.locals(flags="unsigned char*", ids="uint16_t*", at=Py_ssize_t, i=Py_ssize_t, keeps_ids=bint,
                   one=PublisherName)
    cdef int _note_ids(self, Py_ssize_t first, MessageColumns columns, Py_ssize_t start, Py_ssize_t stop,
                       bytearray routes, int wanted, PublisherColumn column) except -1

    @cython.locals(publishers=TopicTable, begin=Py_ssize_t)
    cdef Layout layout(self, TopicTable table, Py_ssize_t rows, Py_ssize_t new, Py_ssize_t name_bytes,
                       Py_ssize_t property_bytes, Py_ssize_t payload_bytes, uint32_t kind)

    @cython.locals(rows=Py_ssize_t, publishers=TopicTable)
    cdef int write(self, unsigned char* out, Layout plan, TopicTable table) except -1


@cython.locals(ends="uint32_t*", begin=Py_ssize_t, new=Py_ssize_t, size=Py_ssize_t, i=Py_ssize_t)
cdef int write_names(unsigned char* out, Py_ssize_t ends_at, Py_ssize_t names_at, TopicTable table,
                     Py_ssize_t first) except -1

@cython.locals(flag="unsigned char")
cdef bint _is_taken(MessageColumns columns, Py_ssize_t i, bytearray routes, int wanted) except -1
