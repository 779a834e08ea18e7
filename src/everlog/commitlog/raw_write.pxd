# The inline C twin of raw_write.py.
from cpython.bytearray cimport PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc

from everlog.base.memory cimport pointer

cdef extern from *:
    """
    #include <errno.h>
    #include <string.h>
    #include <sys/uio.h>
    #include <unistd.h>

    static int everlog_write_all(int fd, long long at, struct iovec *v, Py_ssize_t n, int sync,
                                 int mark_fd, const char *mark, Py_ssize_t mark_size) {
        while (n > 0) {
            if (!v->iov_len) { v++; n--; continue; }
            ssize_t w = pwritev(fd, v, n < 1000 ? (int)n : 1000, (off_t)at);
            if (w < 0) { if (errno == EINTR) continue; return errno; }
            if (w == 0) return EIO;
            at += w;
            while (n > 0 && (size_t)w >= v->iov_len) { w -= v->iov_len; v++; n--; }
            if (n > 0) { v->iov_base = (char *)v->iov_base + w; v->iov_len -= w; }
        }
        if (sync) while (fdatasync(fd) < 0) if (errno != EINTR) return errno;
        if (mark_fd >= 0) {
            ssize_t w = pwrite(mark_fd, mark, mark_size, 0);
            if (w != mark_size) return w < 0 ? errno : EIO;
        }
        return 0;
    }

    static size_t everlog_page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

    static int everlog_write_around(int fd, int direct_fd, long long at, struct iovec *v, Py_ssize_t n,
                                    char *buffer, size_t room, size_t page,
                                    int mark_fd, const char *mark, Py_ssize_t mark_size) {
        size_t used = at % page;
        at -= used;
        while (n) {
            size_t size = v->iov_len < room - used ? v->iov_len : room - used;
            memcpy(buffer + used, v->iov_base, size);
            used += size;
            v->iov_base = (char *)v->iov_base + size; v->iov_len -= size;
            if (!v->iov_len) { v++; n--; }
            if (n && used < room) continue;
            size_t rest = used % page, whole = rest ? used + page - rest : used;
            memset(buffer + used, 0, whole - used);
            ssize_t w;
            do w = pwrite(direct_fd, buffer, whole, (off_t)at); while (w < 0 && errno == EINTR);
            if (w != (ssize_t)whole) return w < 0 ? errno : EINVAL;
            memmove(buffer, buffer + used - rest, rest);
            at += whole; used = 0;
        }
        return everlog_write_all(fd, 0, v, 0, 1, mark_fd, mark, mark_size);
    }
    """
    ctypedef struct iovec "struct iovec":
        void *iov_base
        size_t iov_len
    int everlog_write_all(int fd, long long at, iovec *v, Py_ssize_t n, int sync, int mark_fd, const char *mark,
                          Py_ssize_t mark_size) nogil
    size_t everlog_page()
    int everlog_write_around(int fd, int direct_fd, long long at, iovec *v, Py_ssize_t n, char *buffer, size_t room,
                             size_t page, int mark_fd, const char *mark, Py_ssize_t mark_size) nogil


cdef inline iovec *vector_of(object blocks) except NULL:
    cdef Py_ssize_t n = len(blocks), k
    cdef object block
    cdef iovec *vector = <iovec*>malloc((n + 1) * sizeof(iovec))
    if vector == NULL:
        raise MemoryError()
    try:
        for k in range(n):
            block = blocks[k]
            vector[k].iov_base = pointer(block)
            vector[k].iov_len = PyBytes_GET_SIZE(block) if PyBytes_Check(block) else PyByteArray_GET_SIZE(block)
    except TypeError:
        free(vector)
        raise
    return vector


cdef inline int write_all(int fd, long long position, object blocks, bint sync, int mark_fd, bytes mark) except -1:
    cdef Py_ssize_t n = len(blocks), mark_size = PyBytes_GET_SIZE(mark)
    cdef const char *mark_at = PyBytes_AS_STRING(mark)
    cdef int failed
    cdef iovec *vector = vector_of(blocks)
    with nogil:
        failed = everlog_write_all(fd, position, vector, n, sync, mark_fd, mark_at, mark_size)
    free(vector)
    return failed


cdef inline int write_around(
    int fd, int direct_fd, long long position, object blocks, unsigned char[::1] buffer, int mark_fd, bytes mark
) except -1:
    cdef Py_ssize_t n = len(blocks), mark_size = PyBytes_GET_SIZE(mark)
    cdef const char *mark_at = PyBytes_AS_STRING(mark)
    cdef size_t room = buffer.shape[0], page = everlog_page()
    cdef int failed
    cdef iovec *vector = vector_of(blocks)
    with nogil:
        failed = everlog_write_around(
            fd, direct_fd, position, vector, n, <char*>&buffer[0], room, page, mark_fd, mark_at, mark_size
        )
    free(vector)
    return failed
