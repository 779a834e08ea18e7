cimport cython


cdef class Fresh:
    cdef readonly long long position, time_us


cdef class FreshEffect(Fresh):
    cdef object _effect


cdef class Appended(Fresh):
    cdef readonly long long epoch, previous, seq, messages, bytes
    cdef readonly bytes value
    cdef readonly str key, message_id


@cython.locals(made=Appended)
cpdef Appended appended(
    long long position, long long time_us, long long epoch, long long previous, long long seq, long long messages,
    long long size, bytes value, str key, str message_id
)
