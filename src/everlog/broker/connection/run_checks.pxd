cimport cython
from libc.stdint cimport uint32_t

from everlog.base.columns cimport PublishRun
from everlog.base.memory cimport equal, pointer, u32s
from everlog.base.topic_table cimport TopicTable

cdef int _DOLLAR


@cython.locals(topics="uint32_t*", last=Py_ssize_t, topic=Py_ssize_t, i=Py_ssize_t)
cpdef list distinct_topics(PublishRun run)

@cython.locals(flags="unsigned char*", count=Py_ssize_t, i=Py_ssize_t)
cpdef Py_ssize_t count_qos_2(PublishRun run) except -1

@cython.locals(flags="unsigned char*", topics="uint32_t*", route="unsigned char*", refuses="unsigned char*",
               known=Py_ssize_t, most=Py_ssize_t, topic=Py_ssize_t, shard=Py_ssize_t, i=Py_ssize_t)
cpdef list drop_unkeepable(PublishRun run, bytearray routes, bytearray refusing)

@cython.locals(flags="unsigned char*", topics="uint32_t*", marks="unsigned char*", known=Py_ssize_t,
               dropped=Py_ssize_t, i=Py_ssize_t)
cpdef Py_ssize_t drop_reserved(PublishRun run, bytearray reserved) except -1

@cython.locals(known=Py_ssize_t, count=Py_ssize_t, ends="uint32_t*", names="unsigned char*", marks="unsigned char*",
               topic=Py_ssize_t)
cpdef Py_ssize_t note_reserved(TopicTable table, bytearray reserved) except -1

@cython.locals(ends="uint32_t*", names="unsigned char*", size=Py_ssize_t, topic=Py_ssize_t, start=Py_ssize_t)
cpdef bint any_begins(TopicTable table, Py_ssize_t first, bytes prefix) except -1
