cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from everlog.base.memory cimport part, pointer
from everlog.base.records cimport Records
from everlog.commitlog.batch_index cimport GrowingIndex
from everlog.commitlog.frame_header cimport frame_bytes, mark_bytes

cdef enum:  # of segment_format
    FRAME_BYTES = 32
    HEADER_BYTES = 128


cdef class SegmentWriter:
    cdef object _catalog, _now_us, _file, _mark_file
    cdef uint64_t _salt
    cdef GrowingIndex _index
    cdef bint _sync, _allocating
    cdef uint32_t _salted, _after_sync
    cdef int64_t _step, _segment_bytes, _allocated, _unfinished
    cdef readonly object mark, segment
    cdef public int64_t layout
    cdef readonly int64_t written, position, base
    cdef readonly bint in_doubt
    cdef object _aside
    cdef list _aside_batches
    cdef Py_ssize_t _kept_bytes

    @cython.locals(last=Records, start=int64_t, end=int64_t, reserved=int64_t)
    cpdef int write(self, int64_t base_offset, list batches) except -1

    cpdef bint takes_quickly(self, int64_t base_offset, int64_t size) except -1

    @cython.locals(last=Records, start=int64_t, end=int64_t)
    cpdef bint write_aside(self, list batches, int64_t patience_ns) except -1
    cpdef int end_aside(self) except -1

    @cython.locals(last=Records, batches=list)
    cdef int _wrote_aside(self) except -1

    @cython.locals(size=int64_t)
    cdef int _allocate(self, object file, int64_t start, int64_t end) except -1

    @cython.locals(records=Records, length=int64_t)
    cdef int64_t _length(self, list batches) except -1

    @cython.locals(records=Records, blocks=list, flag=uint32_t)
    cdef list _framed(self, int64_t position, list batches)

    @cython.locals(records=Records, first=Records, last=Records, index=GrowingIndex)
    cdef int _note(self, int64_t position, list batches) except -1


@cython.locals(raw="unsigned char*", topics=Py_ssize_t, flags=Py_ssize_t)
cdef tuple _columns(Records records)
