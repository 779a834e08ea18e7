# The inline C twin of raw_send.py.
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE

cdef extern from *:
    """
    #include <errno.h>
    #include <sys/socket.h>
    #include <sys/uio.h>

    #define EVERLOG_PARTS 1000  /* the system's limit is 1,024 */
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif

    static Py_ssize_t everlog_send(int fd, struct iovec *v, Py_ssize_t n) {
        struct msghdr message = {.msg_iov = v, .msg_iovlen = n};
        ssize_t sent;
        do sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL); while (sent < 0 && errno == EINTR);
        return sent < 0 ? 0 : sent;
    }
    """
    enum: EVERLOG_PARTS
    ctypedef struct iovec "struct iovec":
        void *iov_base
        size_t iov_len
    Py_ssize_t everlog_send(int fd, iovec *v, Py_ssize_t n)


cdef inline Py_ssize_t send_parts(int fd, list parts) except -1:
    cdef Py_ssize_t n = min(len(parts), EVERLOG_PARTS), k
    cdef iovec vector[EVERLOG_PARTS]
    cdef Py_buffer view
    cdef object part
    for k in range(n):
        part = parts[k]
        if PyBytes_Check(part):
            vector[k].iov_base = PyBytes_AS_STRING(part)
            vector[k].iov_len = PyBytes_GET_SIZE(part)
        else:  # the list holds what it is a view of
            PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
            vector[k].iov_base = view.buf
            vector[k].iov_len = view.len
            PyBuffer_Release(&view)
    return everlog_send(fd, vector, n)
