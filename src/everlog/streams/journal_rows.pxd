cimport cython
from libc.stdint cimport uint32_t

from everlog.base.columns cimport MessageColumns
from everlog.base.memory cimport copy, part, pointer, resize, room, u32s
from everlog.base.topic_table cimport TopicTable


@cython.final
cdef class TurnRecords:
    cdef readonly list names
    cdef readonly bytearray data, ends
    cdef readonly Py_ssize_t size

    @cython.locals(count=Py_ssize_t)
    cpdef int add(self, str name, object source, Py_ssize_t size) except -1


@cython.locals(
    turn=TurnRecords, names=list, count=Py_ssize_t, topics="uint32_t*", sections="uint32_t*", starts="uint32_t*",
    ends="uint32_t*", ends_in="uint32_t*", end=uint32_t, row=Py_ssize_t, name=str
)
cpdef int fill_columns(MessageColumns columns, object records, TopicTable table, dict numbers) except -1
