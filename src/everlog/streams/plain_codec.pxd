cimport cython

from everlog.base.memory cimport copy, equal, part, pointer, put64, put_high32, put_high64, resize
from everlog.streams.fresh cimport Appended


cdef int NOTHING_PLAIN, SET, PUT, GET
cdef bytes _SET, _PUT, _GET, _OK, _WRITTEN, _ENTRIES
cdef int _NIL, _FALSE, _TRUE, HEAD_BYTES


@cython.final
cdef class PlainCall:
    cdef readonly int op, level
    cdef readonly Py_ssize_t key_at, key_size, value_at, value_size, id_at, id_size
    cdef readonly long long max_bytes, seen_epoch, seen_position
    cdef Py_ssize_t _at, _end, _size
    cdef long long _number

    @cython.locals(source="const unsigned char*", fields=int, op=int)
    cpdef int read(self, bytes data, Py_ssize_t at, bytes name) except -1

    @cython.locals(fields=int, op=int)
    cdef int _request(self, const unsigned char* source, bytes name) except -1

    cdef int _set(self, const unsigned char* source, int fields) except -1
    cdef int _put(self, const unsigned char* source, int fields) except -1

    @cython.locals(fields=int)
    cdef bint _message(self, const unsigned char* source) except -1

    cdef bint _message_id(self, const unsigned char* source) except -1
    cdef bint _level(self, const unsigned char* source) except -1
    cdef bint _is(self, const unsigned char* source, int byte) except -1

    @cython.locals(size=Py_ssize_t)
    cdef bint _skip(self, const unsigned char* source, bytes these) except -1

    cdef int _array(self, const unsigned char* source) except -2

    @cython.locals(_=int)
    cdef bint _big(self, const unsigned char* source, int size) except -1

    @cython.locals(first=int)
    cdef bint _text(self, const unsigned char* source) except -1

    @cython.locals(first=int)
    cdef bint _bytes(self, const unsigned char* source) except -1

    cdef bint _pass(self, Py_ssize_t size) except -1

    @cython.locals(first=int)
    cdef bint _int(self, const unsigned char* source) except -1


@cython.final
cdef class Packer:
    cdef bytes _prefix
    cdef readonly bytearray room
    cdef Py_ssize_t _at

    @cython.locals(size=Py_ssize_t)
    cpdef bytes record(self, Appended one)

    @cython.locals(value=bytes, size=Py_ssize_t, key=bytes, id=bytes, out="unsigned char*")
    cpdef Py_ssize_t pack(self, Appended one) except -1

    @cython.locals(out="unsigned char*")
    cpdef Py_ssize_t append(
        self, long long epoch, long long previous, long long time_us, long long seq, long long messages,
        long long total, bytes data, Py_ssize_t at, Py_ssize_t size
    ) except -1

    cdef int _rest(self, unsigned char* out) except -1

    cpdef bytes written(self, unsigned long long id, long long epoch, int level, Appended one)

    @cython.locals(out="unsigned char*")
    cpdef bytes done(
        self, unsigned long long id, long long epoch, int level, long long position, long long time_us, long long seq,
        long long previous
    )

    @cython.locals(out="unsigned char*", size=Py_ssize_t)
    cpdef bytes entry(
        self, unsigned long long id, long long epoch, long long position, bytes key, long long revision,
        long long time_us, object value, long long expires_us, long long at
    )

    @cython.locals(out="unsigned char*", size=Py_ssize_t)
    cpdef bytes framed(self, unsigned long long id, bytes body)

    cdef int _begin(self, Py_ssize_t size) except -1
    cdef int _head(
        self, unsigned char* out, unsigned long long id, long long epoch, long long position, int level
    ) except -1
    cdef int _byte(self, unsigned char* out, int byte) except -1

    @cython.locals(size=Py_ssize_t)
    cdef int _all(self, unsigned char* out, bytes data) except -1

    @cython.locals(at=Py_ssize_t)
    cdef int _big(self, unsigned char* out, int first, long long value, int size) except -1
    cdef int _number(self, unsigned char* out, long long value) except -1

    @cython.locals(size=Py_ssize_t)
    cdef int _text(self, unsigned char* out, bytes data) except -1

    @cython.locals(data=bytes)
    cdef int _value(self, unsigned char* out, object value) except -1
    cdef int _size(self, unsigned char* out, Py_ssize_t size) except -1
