cimport cython


@cython.final
cdef class Delivery:
    cdef readonly str subject, reply
    cdef readonly bytes payload, correlation


@cython.locals(made=Delivery)
cpdef Delivery new_delivery(str subject, bytes payload, str reply, bytes correlation)
