cimport cython

from everlog.broker.connection.raw_socket cimport send as send_parts
from everlog.broker.connection.traffic cimport Traffic
from everlog.broker.connection.wire cimport Wire


cdef int _UNKNOWN


cdef class Output:
    cdef public Traffic traffic
    cdef public object transport, session, connect, on_free
    cdef public int version
    cdef Wire _wire
    cdef int _fd
    cdef public bint is_closing, is_full
    cdef public Py_ssize_t open_qos_1
    cdef object _write_behind, _held, _early
    cdef Py_ssize_t _max_bytes

    cpdef write(self, data)
    cpdef write_acks(self, bytes acks)
    cpdef answer(self, bytes acks, Py_ssize_t pubacks)
    cdef int _put(self, bytes data) except -1

    cdef int _pass_on(self, bytes data) except -1

    @cython.locals(sent=Py_ssize_t)
    cdef int _put_parts(self, list parts) except -1
    cpdef hold(self)
    cpdef bint is_stuck(self)
    cpdef Py_ssize_t unsent_bytes(self)
    cpdef confirm_receipt(self)
