cimport cython
from libc.stdint cimport uint32_t

from everlog.base.columns cimport MessageColumns
from everlog.base.memory cimport u32s
from everlog.base.topic_table cimport TopicTable


@cython.locals(
    count=Py_ssize_t, topics="uint32_t*", sections="uint32_t*", starts="uint32_t*", ends="uint32_t*", end=uint32_t,
    row=Py_ssize_t, record=tuple
)
cpdef int fill_columns(MessageColumns columns, object records, TopicTable table, dict numbers) except -1
