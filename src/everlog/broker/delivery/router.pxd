cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from everlog.base.columns cimport MessageColumns, PublishRun
from everlog.base.memory cimport pointer, u32s
from everlog.base.positions cimport NOT_KEPT
from everlog.base.records cimport Records
from everlog.base.topic_table cimport TopicTable
from everlog.broker.delivery.audiences cimport Audiences
from everlog.broker.delivery.fanout cimport Fanout
from everlog.broker.delivery.kept_topics cimport KeptTopics
from everlog.broker.delivery.pending_acks cimport AckQueue, PendingAcks
from everlog.broker.delivery.unkept_messages cimport UnkeptMessages

cdef unsigned char _RETAIN


cdef class Router:
    cdef public object log, now_us, due_us, retained, catchup, spills, own
    cdef public Audiences audiences
    cdef public Fanout fanout
    cdef public TopicTable table
    cdef public KeptTopics kept
    cdef public PendingAcks pending
    cdef public list routed, taken
    cdef readonly Py_ssize_t names_per_step
    cdef public Py_ssize_t max_unwritten_bytes, messages_in, messages_kept
    cdef public bint committing, behind, ids_ahead, names_publishers, absent_qos_0
    cdef readonly bint refuses, hurries
    cdef readonly bytearray refusing, late
    cdef readonly bytearray elsewhere
    cdef readonly object forwarder
    cdef bint _full
    cdef object _soon, _write_behind, _groups
    cdef list _shards
    cdef UnkeptMessages _unkept
    cdef bint _turn_asked, _is_private
    cdef uint64_t _now
    cdef Py_ssize_t _saves

    @cython.locals(positions=list, awaited=list, kept=Py_ssize_t)
    cpdef list publish(self, PublishRun run, AckQueue queue=*, bytes acks=*, Py_ssize_t pubacks=*, object publisher=*,
                       Py_ssize_t duplicates=*, object named=*)

    @cython.locals(marks=bytearray)
    cdef list _awaited(self, PublishRun run, list positions)

    @cython.locals(routes=bytearray, first=Py_ssize_t, last=Py_ssize_t, topic=Py_ssize_t, kept=Py_ssize_t,
                   number=Py_ssize_t, taken=Py_ssize_t, marks=bytearray)
    cdef Py_ssize_t _keep(self, PublishRun run, list positions, object publisher, object named) except -1

    @cython.locals(taken=Py_ssize_t)
    cdef Py_ssize_t _forward(self, PublishRun run, Py_ssize_t number, list positions, object publisher, object named) except -1

    cdef int _gather(self, PublishRun run, bytearray routes, object publisher) except -1
    cpdef take_shared(self, MessageColumns columns, Py_ssize_t count, TopicTable table)
    cpdef _turn(self)
    cpdef ask_turn(self)
    cdef int _commit(self) except -1
    @cython.locals(number=Py_ssize_t, behind=bint, refuses=bint, much=bint, stuck=bint)
    cpdef bint is_behind(self) except -1

    @cython.locals(ends=list, number=Py_ssize_t, end=int64_t)
    cpdef committed(self)

    @cython.locals(at=int64_t, found=list, first=Py_ssize_t, records=Records)
    cdef int _route(self, Py_ssize_t number, int64_t end) except -1
    cpdef acked(self, session)
    cpdef subscribe(self, session, flt, one)
    cpdef unsubscribe(self, session, flt)

    @cython.locals(filters=Py_ssize_t)
    cdef int _bound_names(self) except -1


@cython.locals(raw="unsigned char*", at=Py_ssize_t, i=Py_ssize_t)
cdef bint _asks_to_retain(Records records, Py_ssize_t first) except -1
