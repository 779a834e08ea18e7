cimport cython
from libc.stdint cimport uint32_t

from everlog.base.memory cimport copy, get32, pointer, put32, u32s
from everlog.base.topic_table cimport TopicTable


@cython.locals(marks=bytearray, mark="unsigned char*", raw="unsigned char*", ends="uint32_t*", found=uint32_t,
               size=Py_ssize_t, i=Py_ssize_t, number=uint32_t, packed=bytearray, out="unsigned char*",
               place=Py_ssize_t, names="unsigned char*", length=uint32_t)
cdef bytearray _pack(object data, Py_ssize_t at, Py_ssize_t count, Py_ssize_t known, TopicTable table)
