cimport cython

from everlog.mqtt.primitives cimport Reader


@cython.locals(data=bytes, size=Py_ssize_t)
cdef _known_head(Reader reader)

cdef Py_ssize_t _head_bytes(bytes data)

@cython.locals(version=int, flags=int, clean=bint, client_id=str)
cpdef decode_connect(Reader reader)
