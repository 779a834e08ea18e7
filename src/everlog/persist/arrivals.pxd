cimport cython
from libc.stdint cimport uint64_t

from everlog.base.memory cimport copy, get64, hash_of, pointer, put64
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
    cdef readonly Py_ssize_t count
    cdef uint64_t _seed
    cdef list _asked
    cdef bytearray _ids, _id

    @cython.locals(one=Asked)
    cpdef bint has(self, str reply, uint64_t id) except -1

    cdef bint is_taken(self, Py_ssize_t place) except -1
    cpdef int add(self, Py_ssize_t place, Asked asked) except -1

    @cython.locals(ids="unsigned char*", last=Py_ssize_t, gap=Py_ssize_t, at=Py_ssize_t, home=Py_ssize_t)
    cpdef int remove(self, uint64_t id) except -1

    @cython.locals(ids="unsigned char*", last=Py_ssize_t, at=Py_ssize_t)
    cpdef Py_ssize_t place(self, uint64_t id) except -1

    @cython.locals(there=list, one=Asked)
    cdef int _grow(self) except -1


@cython.locals(
    one=Delivery, data=bytes, known=Allowed, source="const unsigned char*", id=uint64_t, told=int, rest=list,
    header=Py_ssize_t, decided=int, not_plain=int, asked=Asked, place=Py_ssize_t
)
cpdef list take_plain(
    list deliveries, PlainRequests plain, dict allowed, UnderWay under_way, dict active, Py_ssize_t room
)

@cython.locals(one=Asked, made=Delivery, data=bytes, messages=list, large=list)
cpdef tuple answers_of(list answered, UnderWay under_way, Py_ssize_t most_bytes)
