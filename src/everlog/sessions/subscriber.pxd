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
    cpdef int add(self, str text, one, Py_ssize_t size, bint no_local) except -1
    cpdef unsubscribe(self, str text)

    @cython.locals(text=str, found=list)
    cpdef list shared_filters(self)
    cpdef str mounted(self, str text)
