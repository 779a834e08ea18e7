cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport copy, get32, pointer, put32, put64, resize, room, u32s
from everlog.base.records cimport property_size

cdef uint64_t AT_MASK
cdef Py_ssize_t ENTRY_BYTES, _CHUNK_BYTES, _FIRST_BYTES, _OWN_BYTES


cdef class RetainedChunks:
    cdef readonly list chunks, loose
    cdef readonly Py_ssize_t size_bytes
    cdef bytearray _alive
    cdef list _free
    cdef Py_ssize_t _open, _used

    @cython.locals(size=Py_ssize_t, chunk=uint64_t, at=Py_ssize_t, place=uint64_t)
    cdef uint64_t put(self, uint64_t number, uint64_t time_us, Py_ssize_t property_bytes, Py_ssize_t payload_bytes,
                      uint32_t flags) except? 0

    @cython.locals(out="unsigned char*", at=Py_ssize_t)
    cdef int write_head(self, uint64_t place, uint64_t number, uint64_t time_us, Py_ssize_t property_bytes,
                        Py_ssize_t payload_bytes, uint32_t flags) except -1

    @cython.locals(out="unsigned char*", at=Py_ssize_t)
    cdef bint write_over(self, uint64_t place, const unsigned char* source, Py_ssize_t begin, Py_ssize_t middle,
                         Py_ssize_t end, uint32_t flags, uint64_t time_us) except -1

    @cython.locals(raw="unsigned char*", at=Py_ssize_t)
    cdef Py_ssize_t entry_size(self, uint64_t place) except -1

    @cython.locals(chunk=Py_ssize_t, alive="uint32_t*")
    cdef int drop(self, uint64_t place) except -1
    cdef Py_ssize_t used(self, Py_ssize_t chunk) except -1

    @cython.locals(chunk=Py_ssize_t)
    cdef Py_ssize_t take_loose(self) except -2
    cdef int drop_chunk(self, Py_ssize_t chunk) except -1

    @cython.locals(size=Py_ssize_t, alive=Py_ssize_t)
    cdef int _look_at(self, Py_ssize_t chunk) except -1

    @cython.locals(chunk=Py_ssize_t, block=bytearray)
    cdef int _close(self) except -1

    @cython.locals(chunk=Py_ssize_t)
    cdef Py_ssize_t _begin(self, Py_ssize_t size) except -1

    @cython.locals(block=bytearray, size=Py_ssize_t)
    cdef int _grow(self, Py_ssize_t chunk) except -1


@cython.locals(position=Py_ssize_t, size=Py_ssize_t)
cdef int copy_without_alias(unsigned char* out, Py_ssize_t at, const unsigned char* source, Py_ssize_t begin,
                             Py_ssize_t middle) except -1
