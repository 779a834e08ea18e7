cimport cython

from everlog.base.memory cimport copy, pointer, resize
from everlog.bus.delivery cimport Delivery


cdef bytes _PUB


@cython.final
cdef class NatsOutput:
    cdef dict _forms
    cdef bytearray _room

    cpdef bytes form(self, str subject)

    @cython.locals(
        message=Delivery, form=bytes, at=Py_ssize_t, size=Py_ssize_t, needed=Py_ssize_t, out="unsigned char*"
    )
    cpdef bytes render(self, list messages)

    @cython.locals(count=Py_ssize_t, rest=Py_ssize_t, k=Py_ssize_t)
    cdef Py_ssize_t _digits(self, unsigned char* out, Py_ssize_t at, Py_ssize_t value) except -1
