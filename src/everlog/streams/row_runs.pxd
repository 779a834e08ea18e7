cimport cython

from everlog.base.memory cimport copy, pointer, room
from everlog.streams.fresh cimport Appended


@cython.locals(count=Py_ssize_t, at=Py_ssize_t, one=Appended)
cpdef Py_ssize_t message_run(list records, Py_ssize_t start, list rows, list ids) except -1

@cython.locals(count=Py_ssize_t, at=Py_ssize_t, one=Appended, last=dict)
cpdef Py_ssize_t entry_run(list records, Py_ssize_t start, list rows, list ids) except -1

@cython.locals(size=Py_ssize_t, block=bytearray)
cdef bytearray _blob(bytes value)

cpdef object plain_effect(object record, object kind)
