cimport cython

from everlog.base.memory cimport get64, pointer
from everlog.bus.delivery cimport Delivery, new_delivery
from everlog.streams.fresh cimport Asked, new_asked
from everlog.streams.plain_requests cimport PlainRequests


@cython.final
cdef class Allowed:
    cdef readonly str name
    cdef readonly bytes raw_name
    cdef readonly object kinds
    cdef readonly bint may_write, may_read


@cython.final
cdef class UnderWay:
    cdef readonly dict replies


@cython.locals(
    one=Delivery, data=bytes, known=Allowed, source="const unsigned char*", number="unsigned long long", told=int,
    rest=list, header=Py_ssize_t, decided=int, not_plain=int, replies=dict, asked=Asked
)
cpdef list take_plain(
    list deliveries, PlainRequests plain, dict allowed, UnderWay under_way, dict active, Py_ssize_t room
)

@cython.locals(one=Asked, made=Delivery, data=bytes, messages=list, large=list, replies=dict)
cpdef tuple answers_of(list answered, UnderWay under_way, Py_ssize_t most_bytes)
