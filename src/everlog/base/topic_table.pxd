cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport copy, equal, hash_of, pointer, u32s


cdef class TopicTable:
    cdef public uint64_t seed
    cdef public Py_ssize_t max_topics, max_bytes, generation, count, name_bytes
    cdef Py_ssize_t last
    cdef uint32_t mask
    cdef readonly bytearray names, ends
    cdef public TopicTable publishers
    cdef bytearray hashes, slots

    @cython.locals(ends="uint32_t*", start=Py_ssize_t, end=Py_ssize_t)
    cpdef bytes name(self, Py_ssize_t topic)

    @cython.locals(names="unsigned char*", ends="uint32_t*", hashes="uint32_t*", slots="uint32_t*",
                   code=uint32_t, slot=uint32_t, topic=Py_ssize_t, at=Py_ssize_t)
    cdef Py_ssize_t find(self, const unsigned char* source, Py_ssize_t start, Py_ssize_t size) except -2

    @cython.locals(topic=Py_ssize_t, code=uint32_t)
    cdef Py_ssize_t find_or_add(self, const unsigned char* source, Py_ssize_t start, Py_ssize_t size) except -2

    @cython.locals(size=Py_ssize_t, new=Py_ssize_t, code=uint32_t, slots="uint32_t*", slot=uint32_t)
    cpdef Py_ssize_t renew(self, Py_ssize_t topic) except -2

    @cython.locals(slots="uint32_t*", slot=uint32_t)
    cdef int _place(self, Py_ssize_t topic, uint32_t code) except -1

    @cython.locals(before=bytearray, hashes="uint32_t*", used="uint32_t*", slot=Py_ssize_t)
    cdef int _make_room(self, Py_ssize_t size) except -1
