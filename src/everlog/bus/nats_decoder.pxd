cimport cython

from everlog.base.memory cimport part, pointer
from everlog.bus.delivery cimport Delivery, new_delivery


cdef class NatsDecoder:
    cdef public dict batches
    cdef public list lines
    cdef dict _names
    cdef list _pieces
    cdef Py_ssize_t _held
    cdef Py_ssize_t _wanted

    cpdef object feed(self, bytes data)

    @cython.locals(source="const unsigned char*", at=Py_ssize_t, end=Py_ssize_t, stop=Py_ssize_t, after=Py_ssize_t)
    cdef Py_ssize_t _parse(self, bytes data, Py_ssize_t size) except -1

    @cython.locals(
        length="long long", scale="long long", cut=Py_ssize_t, first=Py_ssize_t, second=Py_ssize_t, third=Py_ssize_t,
        number="long long", batch=list, reply=str
    )
    cdef Py_ssize_t _message(
        self, const unsigned char* source, Py_ssize_t at, Py_ssize_t stop, Py_ssize_t body, Py_ssize_t size
    ) except -1

    @cython.locals(name=str)
    cdef str _name(self, bytes raw)
