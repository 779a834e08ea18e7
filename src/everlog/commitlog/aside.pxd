cimport cython

from everlog.commitlog.raw_write cimport (
    begin_aside, end_aside, everlog_aside, failed_aside, start_aside, wait_aside,
)


cdef class Aside:
    cdef everlog_aside* _thread
    cdef bint _is_started, _is_under_way
    cdef object _blocks
    cdef bytes _mark

    cpdef bint begin(self, int fd, long long position, object blocks, int mark_fd, bytes mark,
                     long long patience_ns) except -1
    cpdef end(self)

    @cython.locals(failed=int)
    cdef int _ended(self) except -1
