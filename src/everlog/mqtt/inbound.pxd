cimport cython
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from everlog.base.columns cimport AckRun, MessageColumns, PublishRun
from everlog.base.memory cimport copy, pointer, resize, text_ok, u16s, u32s
from everlog.base.topic_table cimport TopicTable
from everlog.mqtt.lookahead cimport is_worth_it, look_ahead

cdef enum:
    _BAD = -1
    _NO_ID = 0xFFFFFFFF
    HAS_EXPIRY = 0x10
    HAS_ALIAS = 0x20
    _BYTE = 1
    _EXPIRY = 2
    _ALIAS = 3
    _VARINT = 4
    _TEXT = 5
    _BINARY = 6
    _PAIR = 7
    _TOPIC = 8


cdef class Carried:
    cdef public Py_ssize_t limit, total_bytes
    cdef public object on_over

    cdef int add(self, Py_ssize_t size) except -1


cdef class Decoder:
    cdef readonly MessageColumns columns
    cdef readonly TopicTable table
    cdef public Py_ssize_t max_packet_bytes, max_publish_bytes, max_aliases, max_topic_bytes, max_topic_levels, max_topics
    cdef public Py_ssize_t max_events, max_new_topics
    cdef readonly Py_ssize_t topics_made
    cdef readonly bint has_more
    cdef bint is_mounted
    cdef readonly Carried carried
    cdef public int version
    cdef readonly bint from_client, failed
    cdef bytes kinds, mount
    cdef bytearray carry, alias_ids
    cdef list alias_names
    cdef Py_ssize_t carry_at, carry_size, need, alias_generation
    cdef bint arrives_in_carry
    cdef int alias

    cpdef list feed(self, chunk, Py_ssize_t size=*)
    cpdef list more(self)
    cpdef room_in(self, bytearray shared)

    @cython.locals(whole=Py_ssize_t)
    cpdef list arrived(self, bytearray shared, Py_ssize_t size)
    cpdef hold(self, chunk, Py_ssize_t size)
    cdef int _append(self, chunk, Py_ssize_t start, Py_ssize_t stop) except -1
    cdef int _forget(self) except -1
    cdef int _keep(self, data, Py_ssize_t position, Py_ssize_t size, Py_ssize_t need) except -1

    @cython.locals(columns=MessageColumns, source="unsigned char*", last_topic=Py_ssize_t, row=Py_ssize_t,
                   run=Py_ssize_t, any_flags="unsigned int", acks=Py_ssize_t, ack_kind="unsigned int",
                   need=Py_ssize_t, ahead=Py_ssize_t, first="unsigned int", length=Py_ssize_t, at=Py_ssize_t, shift="unsigned int",
                   byte="unsigned int", end=Py_ssize_t, kind="unsigned int", flags=int)
    cdef list _parse(self, data, Py_ssize_t position, Py_ssize_t size)

    @cython.locals(columns=MessageColumns)
    cdef int _flush(self, list events, Py_ssize_t run, Py_ssize_t row, unsigned int any_flags,
                    unsigned int ack_kind, Py_ssize_t acks) except -1

    @cython.locals(qos="unsigned int", topic_at=Py_ssize_t, topic_size=Py_ssize_t, columns=MessageColumns,
                   packet_id="unsigned int", flags=int, properties=Py_ssize_t, size=Py_ssize_t,
                   shift="unsigned int", byte="unsigned int", more=int, topic=Py_ssize_t)
    cdef int _publish(self, const unsigned char* source, unsigned int first, Py_ssize_t at, Py_ssize_t end,
                      Py_ssize_t row) except -2

    @cython.locals(i=Py_ssize_t, levels=Py_ssize_t)
    cdef bint _may_be_new(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t size) except -1

    @cython.locals(alias=int, topic=Py_ssize_t)
    cdef Py_ssize_t _topic(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t size) except -2

    @cython.locals(name=bytes, topic=Py_ssize_t)
    cdef Py_ssize_t _mounted(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t size) except -2

    @cython.locals(topic=Py_ssize_t)
    cdef Py_ssize_t _aliased(self, int alias) except -2

    @cython.locals(names=list)
    cdef bint _knows(self, Py_ssize_t alias) except -1

    @cython.locals(more=Py_ssize_t)
    cdef int _renew_aliases(self) except -1

    cdef int _set_alias(self, int alias, Py_ssize_t topic) except -1

    @cython.locals(kinds="unsigned char*", seen=uint64_t, one=uint64_t, flags=int, number="unsigned int", kind="unsigned int",
                   count=int)
    cdef int _properties(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t end) except -2

    @cython.locals(size=Py_ssize_t, i=Py_ssize_t)
    cdef Py_ssize_t _string(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t end,
                            unsigned int kind) except -2

    @cython.locals(size=Py_ssize_t, packet_id="unsigned int")
    cdef int _ack(self, const unsigned char* source, unsigned int first, Py_ssize_t at, Py_ssize_t end,
                  Py_ssize_t row) except -2
