cimport cython

from everlog.base.memory cimport get64, pointer
from everlog.bus.delivery cimport Delivery, new_delivery
from everlog.streams.plain_requests cimport PlainRequests
from everlog.streams.waiting cimport Waiting


@cython.final
cdef class Allowed:
    cdef readonly str name
    cdef readonly bytes raw_name
    cdef readonly object kinds
    cdef readonly bint may_write, may_read


@cython.locals(
    one=Delivery, data=bytes, known=Allowed, source="const unsigned char*", id="unsigned long long", told=int, rest=list,
    header=Py_ssize_t, decided=int, not_plain=int
)
cpdef list take_plain(list deliveries, PlainRequests plain, dict allowed, dict active, Py_ssize_t room)

@cython.locals(one=Waiting, asker=Delivery, made=Delivery, data=bytes, messages=list, large=list)
cpdef tuple answers_of(list answered, dict active, Py_ssize_t most_bytes)
