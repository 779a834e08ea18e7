cimport cython

from everlog.commitlog.rawwrite cimport write_all


@cython.locals(failed=int)
cpdef object write_blocks(int fd, long long position, object blocks, bint sync, int mark_fd=*, bytes mark=*)
