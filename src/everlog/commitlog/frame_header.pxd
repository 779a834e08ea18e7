cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport blank, check_of, filled, pointer, put32, put64


@cython.locals(out="unsigned char*")
cpdef bytes frame_bytes(uint64_t position, uint64_t base_offset, uint32_t size, uint32_t count, uint32_t salted)

@cython.locals(out="unsigned char*")
cpdef bytes mark_bytes(uint64_t sequence, uint64_t committed, uint64_t segment, uint64_t position, uint64_t layout,
                       uint64_t reserved, uint64_t salt, bint synced)
