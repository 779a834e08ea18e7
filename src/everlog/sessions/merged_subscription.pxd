# The fields in the order of the dataclass.
cdef class MergedSubscription:
    cdef public object session
    cdef public int qos
    cdef public bytes identifiers
    cdef public bint retain_as_published
    cdef public bint no_local
    cdef public tuple since
    cdef public int tells
    cdef public tuple until
    cdef public tuple parts
    cdef public MergedSubscription own
    cdef public tuple group
    cdef public object only
