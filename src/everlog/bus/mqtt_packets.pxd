cimport cython

from everlog.base.memory cimport copy, equal, part, pointer, resize
from everlog.bus.delivery cimport Delivery, new_delivery


@cython.final
cdef class MqttInput:
    cdef public list deliveries, others
    cdef dict _names, _replies
    cdef list _pieces
    cdef Py_ssize_t _held, _wanted
    cdef bytes _section, _correlation
    cdef str _reply

    cpdef object feed(self, bytes data)

    @cython.locals(
        source="const unsigned char*", at=Py_ssize_t, length=Py_ssize_t, shift=int, body=Py_ssize_t
    )
    cdef Py_ssize_t _parse(self, bytes data, Py_ssize_t size) except -1

    @cython.locals(
        size=Py_ssize_t, topic=Py_ssize_t, length=Py_ssize_t, shift=int, raw=bytes, name=str, section=bytes, found=tuple
    )
    cdef bint _publish(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t end) except -1

    cdef str _name(self, bytes raw)
    cpdef tuple reply_of(self, bytes section)


@cython.final
cdef class MqttOutput:
    cdef dict _heads, _plain
    cdef bytearray _room

    @cython.locals(head=bytes)
    cpdef bytes head(self, str subject, str reply, bytes correlation)

    @cython.locals(
        message=Delivery, head=bytes, at=Py_ssize_t, size=Py_ssize_t, needed=Py_ssize_t, rest=Py_ssize_t,
        out="unsigned char*"
    )
    cpdef bytes render(self, list messages)
