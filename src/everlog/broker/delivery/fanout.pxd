cimport cython
from libc.stdint cimport uint64_t

from everlog.base.positions cimport NOT_KEPT
from everlog.base.records cimport Records
from everlog.broker.delivery.audiences cimport Audiences
from everlog.broker.delivery.overlaps cimport is_early
from everlog.mqtt.outbound cimport PublishWriter
from everlog.sessions.merged_subscription cimport MergedSubscription
from everlog.sessions.outgoing_rows cimport OutgoingRows
from everlog.sessions.session cimport Session


cdef class Fanout:
    cdef public Audiences audiences
    cdef public object now_us, on_long, released, rights, shards
    cdef public object sinks
    cdef public dict absent
    cdef public set moved

    @cython.locals(now=uint64_t, parts=list)
    cpdef route(self, Records records, Py_ssize_t first_row, int shard)

    @cython.locals(rows=bytearray, start=Py_ssize_t, stop=Py_ssize_t, number=Py_ssize_t)
    cdef _deliver_parts(self, Records records, list parts, int shard, uint64_t now)

    @cython.locals(merged=MergedSubscription, session=Session)
    cpdef push(self, OutgoingRows out, int shard, uint64_t now)

    cdef _push(self, Session session, OutgoingRows out, int shard, uint64_t now)
    cpdef note_moved(self, Session session)

    @cython.locals(shared=dict, merged=MergedSubscription, session=Session, plain=bint, data=bytes)
    cdef _deliver(self, Records records, bytearray rows, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t number,
                  int shard, uint64_t now)
