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
