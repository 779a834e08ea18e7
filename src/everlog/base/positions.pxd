cdef enum:
    OFFSET_BITS = 56
    NOT_KEPT = 0xFF
