cimport cython
from libc.stdint cimport uint64_t

from everlog.base.records cimport Layout, Records
from everlog.base.topic_table cimport TopicTable


cdef Records _read(object body, Py_ssize_t start, uint64_t base_offset, TopicTable table, bint is_checked)

@cython.locals(plan=Layout)
cdef int _learn(TopicTable table, Records records) except -1

@cython.locals(number=Py_ssize_t)
cdef int _add(TopicTable table, Py_ssize_t first, list names) except -1
