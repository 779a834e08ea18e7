cimport cython

from everlog.base.columns cimport AckRun, PublishRun
from everlog.base.topic_table cimport TopicTable
from everlog.broker.partition cimport count_qos_2, drop_known, drop_reserved, forget_ids, known_ids
from everlog.broker.router cimport Router
from everlog.mqtt.inbound cimport Decoder
from everlog.mqtt.outbound cimport write_acks, write_answers


cdef class Traffic:
    cdef public bytearray buffer, reserved
    cdef public TopicTable table
    cdef public Router router
    cdef public object time
    cdef public bint checks
    cdef public Py_ssize_t receive_maximum, inflight_bytes, topics, topics_bytes, bytes_in, bytes_out


cdef class Wire:
    cdef public object broker, state, transport, session
    cdef public Traffic traffic
    cdef public Decoder decoder
    cdef public Py_ssize_t held, open_qos_1, open_qos_2
    cdef public bint is_open, publishes, _full
    cdef public double last_seen
    cdef public object _buffer, _waiting, _outbox

    @cython.locals(traffic=Traffic, table=TopicTable, router=Router, known=Py_ssize_t, events=list, grew=bint)
    cdef int _receive(self, data, Py_ssize_t size) except -1

    @cython.locals(place=Py_ssize_t)
    cpdef _handle(self, list events)

    @cython.locals(traffic=Traffic, answers=bytes, count=Py_ssize_t, at_qos_2=Py_ssize_t, known=Py_ssize_t,
                   at_most_one=Py_ssize_t)
    cdef int _published(self, PublishRun run) except -1

    @cython.locals(sent=Py_ssize_t, unknown=Py_ssize_t)
    cdef int _acked(self, AckRun run) except -1

    @cython.locals(received=bytearray, count=Py_ssize_t, known=Py_ssize_t, k=Py_ssize_t)
    cdef int _released(self, AckRun run, session) except -1
    cpdef write(self, bytes data)
    cpdef answer(self, bytes data, Py_ssize_t count)
    cdef int _put(self, bytes data) except -1
