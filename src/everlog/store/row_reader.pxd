cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.batch_merge cimport BatchWriter
from everlog.base.memory cimport check_of, copy, get32, get64, pointer, put32, u32s, u64s
from everlog.base.records cimport Layout, Records, marked, padded
from everlog.base.topic_table cimport TopicTable
from everlog.store.mapped_memory cimport address, ahead, faulted, unguard

cdef uint32_t _MAGIC, _VERSION, _PAYLOADS_LAST, _WITH_PROPERTIES, _WITH_OFFSETS, _WITH_PUBLISHERS, _WITH_PACKET_IDS
cdef uint64_t _LOW
cdef uint32_t _NO_PUBLISHER
cdef Py_ssize_t _PUBLISHER_HEAD, _HEADER_BYTES, _ROW_BYTES, _AHEAD, _NOTE_WORDS, _PLACE_WORDS


@cython.final
cdef class RowReader:
    cdef const unsigned char[::1] log
    cdef const unsigned char* raw
    cdef readonly Py_ssize_t size, batches, rows
    cdef tuple columns
    cdef uint64_t* offset_of
    cdef uint64_t* position_of
    cdef uint32_t* size_of
    cdef uint32_t* count_of
    cdef uint32_t* start_of

    @cython.locals(batch=Py_ssize_t)
    cpdef uint64_t offset(self, Py_ssize_t row) except? 0

    @cython.locals(rows="uint64_t*", chosen="uint32_t*", notes=bytearray, note="uint64_t*", places=bytearray,
                   place="uint64_t*", wanted=Py_ssize_t, count=Py_ssize_t, payload_bytes=Py_ssize_t,
                   property_bytes=Py_ssize_t, k=Py_ssize_t, plan=Layout, writer=BatchWriter, out="unsigned char*",
                   holder=bytearray, mark="unsigned char*", lost=int, kind=uint32_t)
    cpdef object take(self, bytearray found, Py_ssize_t first, Py_ssize_t stop, bytearray ids, TopicTable table,
                      Py_ssize_t max_bytes, bint publishers=*)

    @cython.locals(low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t)
    cdef Py_ssize_t _batch_of(self, Py_ssize_t row) noexcept nogil

    @cython.locals(raw="const unsigned char*", at=Py_ssize_t, size=Py_ssize_t, kind=uint32_t, version=uint32_t, count=Py_ssize_t,
                   new=Py_ssize_t, end=Py_ssize_t, known=uint32_t, begin=Py_ssize_t)
    cdef bint _open(self, Py_ssize_t batch, uint64_t* place) noexcept nogil

    @cython.locals(raw="const unsigned char*", batch=Py_ssize_t, opened=Py_ssize_t, previous=Py_ssize_t,
                   total=Py_ssize_t, first_time=uint64_t, n=Py_ssize_t, k=Py_ssize_t, row=Py_ssize_t,
                   which=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t, time_us=uint64_t,
                   later=Py_ssize_t)
    cdef Py_ssize_t _locate(self, uint64_t* rows, Py_ssize_t first, Py_ssize_t stop, uint32_t* chosen,
                            Py_ssize_t wanted, Py_ssize_t max_bytes, uint64_t* place, uint64_t* note,
                            bint publishers) noexcept nogil

    @cython.locals(raw="const unsigned char*", at=Py_ssize_t, check=uint32_t)
    cdef bint _is_whole(self, Py_ssize_t batch, uint64_t* place) noexcept nogil

    @cython.locals(raw="const unsigned char*", property_at=Py_ssize_t, payload_at=Py_ssize_t, n=Py_ssize_t,
                   k=Py_ssize_t, check=uint32_t)
    cdef int _fetch(self, uint64_t* rows, Py_ssize_t first, Py_ssize_t count, uint64_t* note, Layout plan,
                    bint with_properties, unsigned char* out, unsigned char* mark) noexcept nogil
