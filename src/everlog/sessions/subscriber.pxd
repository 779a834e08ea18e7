cimport cython

from everlog.sessions.publisher cimport Publisher


cdef class Subscriber(Publisher):
    cdef public dict subscriptions
    cdef public int no_local
    cdef public bint kept
    cdef public object will
    cdef public str mount
    cdef public tuple memberships
    cdef public long long counted_bytes
    cdef long long _filter_bytes, _will_bytes

    @cython.locals(grown="long long")
    cpdef long long take_growth(self) except? -1
    cpdef subscribe(self, one)
    cpdef unsubscribe(self, str text)
    cpdef str mounted(self, str text)
