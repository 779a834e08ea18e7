cimport cython

from everlog.base.memory cimport copy, part, pointer, resize
from everlog.base.topic_table cimport TopicTable
from everlog.bus.delivery cimport Delivery, new_delivery


cdef Py_ssize_t _READ_BYTES


@cython.final
cdef class MqttInput:
    cdef public list deliveries, others
    cdef TopicTable _topics, _sections
    cdef bytearray _room
    cdef list _names, _replies
    cdef Py_ssize_t _held, _wanted

    cpdef object place(self)

    @cython.locals(done=Py_ssize_t, rest=bytes)
    cpdef object filled(self, Py_ssize_t size)

    @cython.locals(room=bytearray)
    cdef int _move(self, Py_ssize_t size) except -1

    @cython.locals(at=Py_ssize_t, length=Py_ssize_t, shift=int, body=Py_ssize_t)
    cdef Py_ssize_t _parse(self, const unsigned char* source, Py_ssize_t size) except -1

    @cython.locals(
        size=Py_ssize_t, topic=Py_ssize_t, length=Py_ssize_t, shift=int, number=Py_ssize_t, name=str, found=tuple
    )
    cdef bint _publish(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(number=Py_ssize_t)
    cdef Py_ssize_t _learn(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t size) except -1

    cdef tuple _learn_reply(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t size)
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
