cimport cython

from everlog.base.columns cimport AckRun, PublishRun
from everlog.base.topic_table cimport TopicTable
from everlog.broker.connection.output cimport Output
from everlog.broker.connection.raw_socket cimport receive_into
from everlog.broker.connection.run_checks cimport count_qos_2, drop_reserved
from everlog.broker.connection.traffic cimport Traffic
from everlog.broker.connection.wire cimport Receiver
from everlog.broker.delivery.pending_acks cimport AckQueue
from everlog.broker.delivery.router cimport Router
from everlog.mqtt.inbound cimport Decoder
from everlog.mqtt.outbound cimport write_acks, write_answers, write_told_acks


cdef class SocketReader(Receiver):
    cdef public Traffic traffic
    cdef public Decoder decoder
    cdef public Output output
    cdef public object connection, session
    cdef public bint is_open, waits_for_acks
    cdef public Py_ssize_t open_qos_2, late_lane
    cdef public double last_seen
    cdef AckQueue _acks
    cdef object _named
    cdef bint _publishes, _paused, _blocked, _held, _in_line

    cdef object _room(self)

    @cython.locals(size=Py_ssize_t)
    cpdef Py_ssize_t receive_from(self, int fd) except? -1

    @cython.locals(traffic=Traffic, decoder=Decoder, known=Py_ssize_t, events=list)
    cdef int _receive(self, data, Py_ssize_t size, bint in_room) except -1

    @cython.locals(traffic=Traffic, table=TopicTable, router=Router, grew=bint)
    cdef int _take(self, list events, Py_ssize_t known) except -1
    cpdef _handle(self, list events)

    @cython.locals(traffic=Traffic, output=Output, acks=bytes, pubacks=Py_ssize_t, at_qos_2=Py_ssize_t,
                   duplicates=Py_ssize_t, new_qos_2=Py_ssize_t, positions=list)
    cdef int _published(self, PublishRun run) except -1

    @cython.locals(traffic=Traffic, output=Output, sent=Py_ssize_t, unknown=Py_ssize_t)
    cdef int _acked(self, AckRun run) except -1

    @cython.locals(output=Output, count=Py_ssize_t, known=Py_ssize_t, k=Py_ssize_t)
    cdef int _released(self, AckRun run, session) except -1
