cdef class Counters:
    cdef public long long sent, dropped, expired, lost
