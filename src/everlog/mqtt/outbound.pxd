cimport cython
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from everlog.base.columns cimport PublishRun
from everlog.base.memory cimport blank, copy, filled, get32, pointer, u16s, u32s
from everlog.base.positions cimport NOT_KEPT
from everlog.base.records cimport Layout, Records, property_size
from everlog.base.topic_table cimport TopicTable

cdef enum:  # of columns
    HAS_EXPIRY = 0x10
    QOS_BITS = 0x06

cdef bytes _TIME_PROPERTY, _POSITION_PROPERTY
cdef Py_ssize_t _SCATTER_BYTES, _TIME_BYTES, _TIME_AT, _POSITION_BYTES
cdef int _PLACE, _PUBLISHER


cdef Py_ssize_t varint_bytes(Py_ssize_t value) noexcept nogil
cdef Py_ssize_t put_varint(unsigned char* target, Py_ssize_t at, Py_ssize_t value) noexcept nogil

@cython.locals(value=uint32_t)
cdef uint32_t big_endian32(const unsigned char* source, Py_ssize_t at) noexcept nogil


@cython.locals(count=Py_ssize_t)
cdef Py_ssize_t digits(uint64_t value) noexcept nogil

@cython.locals(_=Py_ssize_t)
cdef Py_ssize_t put_digits(unsigned char* target, Py_ssize_t end, Py_ssize_t count, uint64_t value) noexcept nogil

@cython.locals(days=uint64_t, era=uint64_t, day_of_era=uint64_t, year_of_era=uint64_t, day_of_year=uint64_t,
               month=uint64_t, day=uint64_t, year=uint64_t)
cdef int put_date(unsigned char* target, Py_ssize_t at, uint64_t seconds) noexcept nogil


cdef class PublishWriter:
    cdef readonly int version, max_qos
    cdef readonly Py_ssize_t max_packet_bytes, max_aliases, written, payload_bytes, left_out, ids_used, stopped_at
    cdef readonly bint retain_as_published, is_cut
    cdef readonly int tells
    cdef readonly bytes identifiers, mount
    cdef readonly unsigned int next_id
    cdef bytearray alias_topics
    cdef readonly bytearray scratch
    cdef TopicTable alias_table
    cdef object stamp
    cdef int64_t stamp_second
    cdef TopicTable named
    cdef uint32_t publisher
    cdef bytes publisher_pairs

    @cython.locals(total=Py_ssize_t)
    cpdef bytes write(self, Records records, rows, Py_ssize_t start, Py_ssize_t stop, int max_qos, int first_id,
                      uint64_t now_us, bint dup=*, Py_ssize_t max_ids=*, int shard=*, Py_ssize_t max_bytes=*)

    @cython.locals(total=Py_ssize_t, size=Py_ssize_t, parts=list)
    cpdef object write_parts(self, Records records, rows, Py_ssize_t start, Py_ssize_t stop, int max_qos, int first_id,
                             uint64_t now_us, bint dup=*, Py_ssize_t max_ids=*, int shard=*, Py_ssize_t max_bytes=*)

    @cython.locals(limit=Py_ssize_t)
    cdef int _check(self, Records records, rows, Py_ssize_t start, Py_ssize_t stop, int max_qos, int first_id) except -1

    @cython.locals(count=Py_ssize_t, lengths="uint32_t*", raw="unsigned char*", plan=Layout, base=Py_ssize_t,
                   name_ends="uint32_t*", known=Py_ssize_t, chosen="uint32_t*", every=bint, v5=bint, aliases=bint,
                   own=Py_ssize_t, tells=int, written=Py_ssize_t, used=Py_ssize_t, total=Py_ssize_t, k=Py_ssize_t,
                   i=Py_ssize_t, flags="unsigned int", topic=Py_ssize_t, ends=Py_ssize_t, size=Py_ssize_t, name=Py_ssize_t,
                   qos="unsigned int", alias=uint32_t, section=Py_ssize_t, whole=Py_ssize_t,
                   payload=Py_ssize_t, payloads=Py_ssize_t, skip=Py_ssize_t)
    cdef Py_ssize_t _measure(self, Records records, rows, Py_ssize_t start, Py_ssize_t stop, int max_qos,
                             uint64_t now_us, Py_ssize_t max_ids, int shard, Py_ssize_t max_bytes) except -1

    @cython.locals(lengths="uint32_t*", raw="unsigned char*", plan=Layout, base=Py_ssize_t, names="unsigned char*",
                   name_ends="uint32_t*", chosen="uint32_t*", every=bint, v5=bint, own=Py_ssize_t,
                   identifiers="unsigned char*", packet_id="unsigned int", at=Py_ssize_t, k=Py_ssize_t,
                   size=Py_ssize_t, i=Py_ssize_t, flags="unsigned int", qos="unsigned int", first="unsigned int",
                   topic=Py_ssize_t, alias=uint32_t, name=Py_ssize_t, section=Py_ssize_t, begin=Py_ssize_t,
                   head=Py_ssize_t, skip=Py_ssize_t, tells=int, begun=Py_ssize_t)
    cdef int _fill(self, Records records, rows, Py_ssize_t start, Py_ssize_t stop, unsigned int max_qos, int first_id,
                   uint64_t now_us, bint dup, int shard, unsigned char* out, list parts) except -1

    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t _told_bytes(self, Records records, Py_ssize_t i, int shard) except -1

    @cython.locals(pairs=bytes)
    cdef Py_ssize_t _tell(self, Records records, Py_ssize_t i, int shard, unsigned char* out, Py_ssize_t at) except -1

    @cython.locals(number=uint32_t)
    cdef bytes _publisher_of(self, Records records, Py_ssize_t i)

    @cython.locals(offset=uint64_t, before=Py_ssize_t, behind=Py_ssize_t, arrived=uint64_t, second=int64_t,
                   stamp="unsigned char*")
    cdef Py_ssize_t _put_place(self, Records records, Py_ssize_t i, int shard, unsigned char* out,
                               Py_ssize_t at) except -1

    cdef Py_ssize_t _expiry(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t end) noexcept

    @cython.locals(arrived=uint64_t)
    cdef uint64_t _age(self, Records records, Py_ssize_t i, uint64_t now_us) except? 0

    @cython.locals(raw="unsigned char*", ends=Py_ssize_t, base=Py_ssize_t, at=Py_ssize_t, interval=uint64_t)
    cdef bint _expired(self, Records records, Py_ssize_t i, uint64_t now_us) except -1

    @cython.locals(interval=uint64_t)
    cdef int _count_down(self, Records records, Py_ssize_t i, uint64_t now_us, unsigned char* out, Py_ssize_t at,
                         Py_ssize_t end) except -1

    @cython.locals(name=bytes)
    cdef bint _is_mounted(self, TopicTable table, uint32_t topic) except -1

    cdef int _bind_aliases(self, Records records) except -1

    @cython.locals(alias=uint32_t, topics="uint32_t*")
    cdef uint32_t _alias_of(self, uint32_t topic) except? 0


@cython.locals(column="uint16_t*", out="unsigned char*", at=Py_ssize_t, i=Py_ssize_t, packet_id="unsigned int")
cpdef bytes write_acks(unsigned int first_byte, ids, Py_ssize_t start, Py_ssize_t stop)

@cython.locals(column="uint16_t*", is_known="unsigned char*", block=bytearray, out="unsigned char*", at=Py_ssize_t,
               i=Py_ssize_t)
cpdef bytes write_told_acks(unsigned int first_byte, bytes ids, bytes known, unsigned int reason)

@cython.locals(flags="unsigned char*", column="uint16_t*", count=Py_ssize_t, out="unsigned char*", at=Py_ssize_t,
               i=Py_ssize_t, packet_id="unsigned int")
cpdef bytes write_answers(PublishRun run)
