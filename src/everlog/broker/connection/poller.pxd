cimport cython

from everlog.broker.connection.raw_socket cimport (
    accept, change_interest, close_epoll, close_file, find_ready, now_ns, number_of, open_epoll,
)
from everlog.broker.connection.wire cimport TurnEnd, Wire

cdef enum:
    _ROOM = 512


cdef long long _TURN_NS, _SEND_NS, _LET_GO_NS, _NEVER
cdef int _IN, _ACCEPTED_A_TURN, _MANY


cdef class Port:
    cdef public object listening, make, on_short, again
    cdef public int fd


cdef class Poller:
    cdef object _loop
    cdef int _epoll, _count, _next
    cdef long long _until
    cdef TurnEnd _end
    cdef list _sockets
    cdef public bint is_closed
    cdef public long long turn_ns
    cdef bint _is_reading, _is_called_soon
    cdef list _ends
    cdef int _fds[_ROOM]
    cdef int _masks[_ROOM]

    cpdef add(self, int fd, object address, object protocol)
    cdef int _put(self, int fd, object one) except -1

    @cython.locals(k=int)
    cpdef turn(self)
    cdef int _find(self) except -1
    cdef int _call(self, object call) except -1
    cpdef bint at_end(self, object call) except -1

    @cython.locals(wire=Wire)
    cdef int _ready(self, int fd, int mask) except -1

    @cython.locals(fd=int, addresses=list)
    cdef int _accept(self, Port port) except -1
    cdef int _short(self, Port port) except -1
    cpdef end_turn(self)

    @cython.locals(end=TurnEnd)
    cdef int _finish(self) except -1

    @cython.locals(waiting=list, done=Py_ssize_t, wire=Wire)
    cdef int _send(self, long long until) except -1

    @cython.locals(over=list, done=Py_ssize_t, wire=Wire)
    cdef int _let_go(self, long long until) except -1
    cdef int _broken(self, Wire wire, error) except -1
