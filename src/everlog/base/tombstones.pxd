cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.batch_merge cimport BatchWriter
from everlog.base.memory cimport copy, get32, pointer, put32, u32s
from everlog.base.records cimport Layout, Records, marked
from everlog.base.topic_table cimport TopicTable

cdef enum:  # of columns and records
    DROPPED = 0x80
    WITH_PROPERTIES = 0x01
    WITH_PUBLISHERS = 0x04
    WITH_PACKET_IDS = 0x08

cdef extern from *:
    """
    #define EVERLOG_NO_PUBLISHER 0xFFFFFFFFu
    """
    uint32_t NO_PUBLISHER "EVERLOG_NO_PUBLISHER"


cpdef bint is_emptied(Records records, Py_ssize_t row) except -1

@cython.locals(known=Py_ssize_t, choice="unsigned char*", raw="unsigned char*", topics=Py_ssize_t,
               payloads=Py_ssize_t, properties=Py_ssize_t, total=Py_ssize_t, i=Py_ssize_t, topic=Py_ssize_t)
cpdef Py_ssize_t bytes_of_topics(Records records, bytearray chosen) except -1

@cython.locals(known=Py_ssize_t, to="uint32_t*", raw="unsigned char*", theirs=Layout, base=Py_ssize_t,
               count=Py_ssize_t, property_bytes=Py_ssize_t, payload_bytes=Py_ssize_t, i=Py_ssize_t, topic=Py_ssize_t,
               new=Py_ssize_t, name_bytes=Py_ssize_t, writer=BatchWriter, kind=uint32_t, first_publisher=Py_ssize_t,
               brought=list)
cpdef Records empty_topics(Records records, bytearray ids, uint32_t gone, list names, TopicTable table, unsigned int marks=*)

@cython.locals(to="uint32_t*", raw="unsigned char*", out="unsigned char*", mark="unsigned char*", plan=Layout,
               theirs=Layout, base=Py_ssize_t, payload_at=Py_ssize_t, property_at=Py_ssize_t, i=Py_ssize_t,
               topic=uint32_t, time_us=uint64_t, begin=Py_ssize_t, size=Py_ssize_t, kept=bint)
cdef int _fill(BatchWriter writer, Records records, bytearray ids, uint32_t gone, unsigned int marks) except -1

@cython.locals(to="uint32_t*", raw="unsigned char*", base=Py_ssize_t, theirs=Layout, old=TopicTable, column=bytearray,
               out="uint32_t*", last=uint32_t, new=uint32_t, i=Py_ssize_t, topic=uint32_t, who=uint32_t)
cdef bytearray _publishers(Records records, bytearray ids, uint32_t gone, unsigned int marks, TopicTable publishers)

@cython.locals(out="unsigned char*", at=Py_ssize_t, k=Py_ssize_t, name=bytes)
cdef int _name(BatchWriter writer, Py_ssize_t ends_at, Py_ssize_t names_at, list names) except -1
