# The inline C twins of posix.py.
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <sys/socket.h>
    #include <sys/types.h>
    #include <time.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif

    static inline Py_ssize_t everlog_receive(int fd, void *p, Py_ssize_t n) {
        ssize_t got;
        do got = recv(fd, p, (size_t)n, 0); while (got < 0 && errno == EINTR);
        return got >= 0 ? got : errno == EAGAIN || errno == EWOULDBLOCK ? -1 : 0;
    }

    static inline Py_ssize_t everlog_transmit(int fd, const void *p, Py_ssize_t n) {
        ssize_t put;
        do put = send(fd, p, (size_t)n, MSG_NOSIGNAL); while (put < 0 && errno == EINTR);
        return put >= 0 ? put : errno == EAGAIN || errno == EWOULDBLOCK ? -1 : 0;
    }

    static inline uint64_t everlog_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    """
    Py_ssize_t everlog_receive(int fd, void *p, Py_ssize_t n) nogil
    Py_ssize_t everlog_transmit(int fd, const void *p, Py_ssize_t n) nogil
    uint64_t everlog_now() nogil


cdef inline Py_ssize_t receive(int fd, unsigned char* target, Py_ssize_t start, Py_ssize_t size) noexcept nogil:
    return everlog_receive(fd, target + start, size)


cdef inline Py_ssize_t transmit(int fd, const unsigned char* source, Py_ssize_t start, Py_ssize_t size) noexcept nogil:
    return everlog_transmit(fd, source + start, size)


cdef inline uint64_t now_ns() noexcept nogil:
    return everlog_now()
