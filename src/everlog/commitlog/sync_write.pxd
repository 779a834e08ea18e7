cimport cython

from everlog.commitlog.raw_write cimport write_all, write_around


@cython.locals(failed=int)
cpdef object write_blocks(int fd, long long position, object blocks, bint sync, int mark_fd=*, bytes mark=*)


@cython.locals(failed=int)
cpdef object write_blocks_around(
    int fd, int direct_fd, long long position, object blocks, object buffer, bint sync, int mark_fd,
    bytes mark
)
