cimport cython

from everlog.broker.connection.raw_socket cimport (
    EVERLOG_PARTS, change_interest, close_file, quick_ack, send, tuple_of,
)


cdef int IN, OUT, _NOTHING, _LOW, _AGAIN
cdef Py_ssize_t _GATHER_BYTES


cdef class TurnEnd:
    cdef public int epoll
    cdef public list to_send, over
    cdef public bint is_asked
    cdef object _ask

    cpdef int ask(self) except -1


cdef class Receiver:
    cpdef Py_ssize_t receive_from(self, int fd) except? -1


cdef class Wire:
    cdef readonly int fd
    cdef readonly bint is_over
    cdef TurnEnd _end
    cdef object _address, _protocol
    cdef Receiver _receiver
    cdef list _parts
    cdef Py_ssize_t _at, _unsent, _high
    cdef int _interest, _error
    cdef bint _is_reading, _is_closing, _is_blocked, _is_gathered, _is_full

    @cython.locals(failed=int)
    cpdef begin(self)

    @cython.locals(size=Py_ssize_t)
    cpdef int ready(self, int mask) except -1
    cdef int _read_ended(self, Py_ssize_t size) except -1

    @cython.locals(sent=Py_ssize_t, count=Py_ssize_t, parts=list)
    cpdef int send_now(self) except -1

    @cython.locals(done=Py_ssize_t)
    cdef int _drop(self, list parts, Py_ssize_t sent) except -1

    @cython.locals(fd=int)
    cpdef finish(self)
    cdef int _want(self, int interest)
    cdef int _lose(self, int error) except -1
    cpdef int write(self, bytes data) except -1

    @cython.locals(sent=Py_ssize_t)
    cpdef Py_ssize_t send_parts(self, list parts) except -1
    cpdef Py_ssize_t get_write_buffer_size(self)
    cpdef pause_reading(self)
    cpdef resume_reading(self)
    cpdef close(self)
    cpdef abort(self)
    cpdef int confirm_receipt(self) except -1
