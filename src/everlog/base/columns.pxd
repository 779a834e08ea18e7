cdef class MessageColumns:
    cdef readonly Py_ssize_t capacity, ack_capacity
    cdef public object source
    cdef readonly bytearray topics, flags, packet_ids, property_starts, payload_starts, payload_ends
    cdef readonly bytearray ack_ids, ack_reasons

    cpdef grow(self)
    cpdef grow_acks(self)


cdef class PublishRun:
    cdef readonly MessageColumns columns
    cdef readonly Py_ssize_t start, stop
    cdef readonly unsigned int any_flags


cdef class AckRun:
    cdef readonly unsigned int packet_type
    cdef readonly bytes ids, reasons
