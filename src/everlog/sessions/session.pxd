cimport cython
from libc.stdint cimport int64_t, uint64_t

from everlog.base.columns cimport AckRun
from everlog.base.positions cimport NOT_KEPT
from everlog.mqtt.outbound cimport PublishWriter
from everlog.sessions.counters cimport Counters
from everlog.sessions.merged_subscription cimport MergedSubscription
from everlog.sessions.outgoing_rows cimport OutgoingRows
from everlog.sessions.received_ids cimport ReceivedIds
from everlog.sessions.subscriber cimport Subscriber
from everlog.sessions.window cimport Window


cdef class Session(Subscriber):
    cdef public str client_id
    cdef public int version
    cdef public long long expiry_s, max_packet_bytes, queue_bytes, away_us
    cdef public int max_inflight, max_aliases
    cdef public dict lag, doubt
    cdef public Counters counters
    cdef public object user, copies_total
    cdef public bint ready, cut, ahead, scatters
    cdef public int early
    cdef public list early_packets
    cdef bint _is_long, _has_room, _halted, _takes_early
    cdef object _again, _copies, _feeds, _queue, _writers
    cdef Window _window

    cdef Window _made_window(self)
    cpdef bint shares_runs(self, shard) except -1
    cpdef PublishWriter writer(self, MergedSubscription merged)
    cpdef object push(self, OutgoingRows out, shard, uint64_t now_us, released=*)

    @cython.locals(window=Window)
    cdef _write_early(self, OutgoingRows out, int shard, uint64_t now_us)
    cpdef bint take_long(self) except -1

    @cython.locals(writer=PublishWriter, qos=int, counters=Counters, most=Py_ssize_t, window=Window, room=Py_ssize_t,
                   start=Py_ssize_t, stop=Py_ssize_t, next_id=int, parts=list)
    cdef object _write(self, OutgoingRows out, int shard, uint64_t now_us, tag=*, bint again=*, list sent=*,
                       bint scatters=*)

    @cython.locals(window=Window, released=bytes)
    cpdef bytes acked(self, AckRun run)
