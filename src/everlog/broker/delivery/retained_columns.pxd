cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from everlog.base.columns cimport MessageColumns, PublishRun
from everlog.base.memory cimport copy, get32, get64, pointer, u32s, u64s
from everlog.base.positions cimport NOT_KEPT
from everlog.base.records cimport Layout, Records
from everlog.base.topic_table cimport TopicTable
from everlog.broker.delivery.retained_chunks cimport AT_MASK, ENTRY_BYTES, RetainedChunks, copy_without_alias
from everlog.broker.delivery.retained_index cimport NOBODY, NOWHERE, RetainedIndex
from everlog.broker.delivery.retained_reader cimport RetainedReader
from everlog.broker.delivery.slot_queue cimport SlotQueue

cdef enum:  # of columns
    RETAIN = 0x01
    HAS_ALIAS = 0x20
    DROPPED = 0x80

cdef Py_ssize_t TOPIC_BYTES, _NAME_COPIES, _ALIAS_BYTES, _FEW_GONE, _MOVED_EACH
cdef uint32_t _DOLLAR, _STORED_FLAGS


cdef class RetainedColumns:
    cdef readonly Py_ssize_t live
    cdef public int64_t next_number
    cdef public bint stores
    cdef readonly list unkept
    cdef bint _is_settled, _knows_all
    cdef readonly RetainedIndex index
    cdef readonly RetainedChunks chunks
    cdef readonly RetainedReader reader
    cdef readonly SlotQueue queue
    cdef bytearray _moved, _known
    cdef Py_ssize_t _moved_to, _generation
    cdef RetainedIndex _next
    cdef TopicTable _table

    @cython.locals(columns=MessageColumns, topics="uint32_t*", flags="unsigned char*", begins="uint32_t*",
                   middles="uint32_t*", ends="uint32_t*", publisher=uint32_t, room=Py_ssize_t, taken=Py_ssize_t,
                   row=Py_ssize_t, flag=uint32_t, slot=Py_ssize_t, begin=Py_ssize_t, middle=Py_ssize_t,
                   end=Py_ssize_t, size=Py_ssize_t, before=Py_ssize_t, more=Py_ssize_t, source="unsigned char*",
                   route="unsigned char*", known=Py_ssize_t, is_kept=bint)
    cpdef list take_run(self, PublishRun run, uint64_t now_us, TopicTable table, bytes client, Py_ssize_t max_messages,
                        Py_ssize_t max_bytes, bytearray routes=*)

    @cython.locals(plan=Layout, base=Py_ssize_t, raw="unsigned char*", begin=Py_ssize_t, middle=Py_ssize_t,
                   start=Py_ssize_t, end=Py_ssize_t, flags=uint32_t, time_us=uint64_t, topic=Py_ssize_t,
                   slot=Py_ssize_t, stores=bint)
    cpdef restore(self, Records records, Py_ssize_t row, int64_t number, bint changed)

    @cython.locals(count=Py_ssize_t, slot=Py_ssize_t)
    cpdef settle(self)

    @cython.locals(ends="uint32_t*")
    cdef Py_ssize_t _topic_bytes(self, TopicTable table, Py_ssize_t topic) except -1
    cdef int _bind(self, TopicTable table) except -1

    @cython.locals(known="uint32_t*", places="uint64_t*", ends="uint32_t*", slot=Py_ssize_t)
    cdef Py_ssize_t _slot(self, TopicTable table, Py_ssize_t topic) except -2

    @cython.locals(place=uint64_t, stored=uint32_t)
    cdef bint _write_over(self, Py_ssize_t slot, const unsigned char* source, Py_ssize_t begin, Py_ssize_t middle,
                          Py_ssize_t end, uint32_t flags, uint64_t now_us, uint32_t publisher) except -1

    @cython.locals(chunks=RetainedChunks, index=RetainedIndex, properties=Py_ssize_t, payload=Py_ssize_t,
                   size=Py_ssize_t, place=uint64_t, is_new=bint, out="unsigned char*", at=Py_ssize_t, ends="uint32_t*",
                   name=Py_ssize_t, never=bint)
    cdef int _put(self, Py_ssize_t slot, const unsigned char* source, Py_ssize_t begin, Py_ssize_t middle,
                  Py_ssize_t start, Py_ssize_t end, uint32_t flags, uint64_t time_us, TopicTable table,
                  Py_ssize_t topic, uint32_t publisher, int64_t number) except -1

    @cython.locals(slot=Py_ssize_t)
    cpdef bint remove(self, bytes name) except -1
    cdef int _remove(self, Py_ssize_t slot) except -1
    cdef int _set_place(self, Py_ssize_t slot, uint64_t place) except -1
    cdef int _set_publisher(self, Py_ssize_t slot, uint32_t publisher) except -1
    cdef uint32_t _client(self, uint32_t publisher) except? 0

    @cython.locals(names=TopicTable, start=Py_ssize_t, marks="unsigned char*")
    cdef int _changed(self, Py_ssize_t slot) except -1

    @cython.locals(_=Py_ssize_t, slot=Py_ssize_t, name=bytes)
    cpdef list take_changes(self, Py_ssize_t most)

    @cython.locals(slot=Py_ssize_t)
    cpdef stored(self, bytes name)

    @cython.locals(slot=Py_ssize_t)
    cpdef int64_t number_of(self, bytes name) except -2

    @cython.locals(slot=Py_ssize_t)
    cpdef Records find(self, uint64_t number)

    @cython.locals(chunk=Py_ssize_t, count=Py_ssize_t, stop=Py_ssize_t, slot=Py_ssize_t)
    cdef int _tidy(self, Py_ssize_t steps) except -1

    @cython.locals(chunks=RetainedChunks, at=Py_ssize_t, stop=Py_ssize_t, raw="unsigned char*", number=uint64_t,
                   properties=Py_ssize_t, payload=Py_ssize_t, slot=Py_ssize_t, place=uint64_t, out="unsigned char*",
                   start=Py_ssize_t)
    cdef int _empty(self, uint64_t chunk) except -1

    @cython.locals(index=RetainedIndex, following=RetainedIndex, place=uint64_t, ends="uint32_t*", start=Py_ssize_t,
                   size=Py_ssize_t, publisher=uint32_t, number=uint64_t)
    cdef int _move(self, Py_ssize_t slot) except -1

    @cython.locals(following=RetainedIndex)
    cdef int _swap(self) except -1
