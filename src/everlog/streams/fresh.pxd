cimport cython


cdef class Fresh:
    cdef readonly long long position, time_us


cdef class FreshEffect(Fresh):
    cdef object _effect


@cython.final
cdef class Asked:
    cdef readonly str reply
    cdef readonly bytes correlation
    cdef readonly unsigned long long id
    cdef public bytes data
    cdef public bint is_write
    cdef public long long position, time_us, previous, seq
    cdef public int level


@cython.locals(made=Asked)
cpdef Asked new_asked(str reply, bytes correlation, unsigned long long id)


@cython.final
cdef class Appended(Fresh):
    cdef readonly long long epoch, previous, seq, messages, bytes
    cdef readonly bytes value
    cdef readonly str key, message_id
    cdef public int level
    cdef public Asked asked


@cython.locals(made=Appended)
cpdef Appended appended(
    long long position, long long time_us, long long epoch, long long previous, long long seq, long long messages,
    long long size, bytes value, str key, str message_id
)
