# The inline C twin of raw_socket.py. The interpreter lock is kept: none of these calls waits.
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <arpa/inet.h>
    #include <errno.h>
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <stddef.h>
    #include <string.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    #include <sys/un.h>
    #include <time.h>
    #include <unistd.h>
    #ifdef __linux__
    #include <sys/epoll.h>
    #endif

    #define EVERLOG_PARTS 1000  /* of one call; the system's limit is 1,024 */
    #define EVERLOG_ROOM 512    /* events of one call */
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif

    static Py_ssize_t everlog_receive(int fd, void *to, size_t room) {
        ssize_t size;
        do size = recv(fd, to, room, MSG_DONTWAIT); while (size < 0 && errno == EINTR);
        return size < 0 ? -errno : size;
    }

    static Py_ssize_t everlog_send_one(int fd, const char *from, size_t size) {
        ssize_t sent;
        do sent = send(fd, from, size, MSG_DONTWAIT | MSG_NOSIGNAL); while (sent < 0 && errno == EINTR);
        return sent < 0 ? -errno : sent;
    }

    static Py_ssize_t everlog_send_many(int fd, struct iovec *v, Py_ssize_t n) {
        struct msghdr message = {.msg_iov = v, .msg_iovlen = n};
        ssize_t sent;
        do sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL); while (sent < 0 && errno == EINTR);
        return sent < 0 ? -errno : sent;
    }

    typedef union { struct sockaddr any; struct sockaddr_in v4; struct sockaddr_in6 v6; struct sockaddr_un un; } everlog_address;

    static int everlog_quick_ack(int fd) {
    #ifdef TCP_QUICKACK
        int on = 1;
        return setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on) ? -errno : 0;
    #else
        (void)fd;
        return -EOPNOTSUPP;
    #endif
    }

    static long long everlog_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }

    #ifdef __linux__
    static int everlog_accept(int fd, everlog_address *peer, socklen_t *size) {
        int taken;
        do taken = accept4(fd, &peer->any, size, SOCK_NONBLOCK | SOCK_CLOEXEC); while (taken < 0 && errno == EINTR);
        return taken < 0 ? -errno : taken;
    }

    static int everlog_open_epoll(void) { return epoll_create1(EPOLL_CLOEXEC); }

    static int everlog_change(int epoll, int fd, int before, int mask) {
        struct epoll_event event = {.events = (unsigned)mask};
        int what = before == -1 ? EPOLL_CTL_ADD : mask == -1 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
        event.data.fd = fd;
        return epoll_ctl(epoll, what, fd, &event) ? -errno : 0;
    }

    static int everlog_ready(int epoll, int *fds, int *masks, int room) {
        struct epoll_event found[EVERLOG_ROOM];
        int n = epoll_wait(epoll, found, room, 0);
        for (int k = 0; k < n; k++) { fds[k] = found[k].data.fd; masks[k] = (int)found[k].events; }
        return n < 0 ? 0 : n;
    }
    #else  /* no poller is ever made */
    static int everlog_accept(int fd, everlog_address *peer, socklen_t *size) { return -ENOSYS; }
    static int everlog_open_epoll(void) { errno = ENOSYS; return -1; }
    static int everlog_change(int epoll, int fd, int before, int mask) { return -ENOSYS; }
    static int everlog_ready(int epoll, int *fds, int *masks, int room) { return 0; }
    #endif
    """
    enum: EVERLOG_PARTS
    ctypedef struct iovec "struct iovec":
        void *iov_base
        size_t iov_len
    ctypedef struct in_addr:
        pass
    ctypedef struct sockaddr_in:
        unsigned short sin_port
        in_addr sin_addr
    ctypedef struct in6_addr:
        pass
    ctypedef struct sockaddr_in6:
        unsigned short sin6_port
        unsigned int sin6_flowinfo, sin6_scope_id
        in6_addr sin6_addr
    ctypedef struct sockaddr_any "struct sockaddr":
        unsigned short sa_family
    ctypedef union everlog_address:
        sockaddr_any any
        sockaddr_in v4
        sockaddr_in6 v6
    ctypedef unsigned int socklen_t
    enum: AF_INET
    enum: AF_INET6
    unsigned short ntohs(unsigned short value)
    unsigned int ntohl(unsigned int value)
    const char *inet_ntop(int family, const void *address, char *to, socklen_t room)
    Py_ssize_t everlog_receive(int fd, void *to, size_t room)
    Py_ssize_t everlog_send_one(int fd, const char *start, size_t size)
    Py_ssize_t everlog_send_many(int fd, iovec *v, Py_ssize_t n)
    int everlog_accept(int fd, everlog_address *peer, socklen_t *size)
    int everlog_quick_ack(int fd)
    long long everlog_now()
    int everlog_open_epoll()
    int everlog_change(int epoll, int fd, int before, int mask)
    int everlog_ready(int epoll, int *fds, int *masks, int room)
    int everlog_close "close"(int fd)


cdef inline Py_ssize_t receive_into(int fd, object room) except? -1:
    cdef Py_buffer view
    cdef Py_ssize_t size
    if PyByteArray_CheckExact(room):
        return everlog_receive(fd, PyByteArray_AS_STRING(room), PyByteArray_GET_SIZE(room))
    PyObject_GetBuffer(room, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    size = everlog_receive(fd, view.buf, view.len)
    PyBuffer_Release(&view)
    return size


cdef inline Py_ssize_t send(int fd, list parts, Py_ssize_t at) except? -1:
    cdef Py_ssize_t n = min(len(parts), EVERLOG_PARTS), k
    cdef iovec vector[EVERLOG_PARTS]
    cdef Py_buffer view
    cdef object part = parts[0]
    if n == 1 and PyBytes_CheckExact(part):
        return everlog_send_one(fd, PyBytes_AS_STRING(part) + at, PyBytes_GET_SIZE(part) - at)
    for k in range(n):
        part = parts[k]
        if PyBytes_CheckExact(part):
            vector[k].iov_base = PyBytes_AS_STRING(part)
            vector[k].iov_len = PyBytes_GET_SIZE(part)
        else:  # the list holds what it is a view of
            PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
            vector[k].iov_base = view.buf
            vector[k].iov_len = view.len
            PyBuffer_Release(&view)
    vector[0].iov_base = <char*>vector[0].iov_base + at
    vector[0].iov_len -= at
    return everlog_send_many(fd, vector, n)


cdef inline int accept(int fd, list addresses) except? -1:
    cdef everlog_address peer
    cdef socklen_t size = sizeof(peer)
    cdef int taken = everlog_accept(fd, &peer, &size)
    if taken >= 0:
        addresses.append(PyBytes_FromStringAndSize(<char*>&peer, min(size, <socklen_t>sizeof(peer))))
    return taken


cdef inline object tuple_of(object address):
    cdef everlog_address *peer
    cdef char text[64]
    if not isinstance(address, bytes) or len(<bytes>address) < 2:
        return address
    peer = <everlog_address*>PyBytes_AS_STRING(address)
    if peer.any.sa_family == AF_INET:
        inet_ntop(AF_INET, &peer.v4.sin_addr, text, sizeof(text))
        return (<bytes>text).decode(), ntohs(peer.v4.sin_port)
    if peer.any.sa_family == AF_INET6:
        inet_ntop(AF_INET6, &peer.v6.sin6_addr, text, sizeof(text))
        return (
            (<bytes>text).decode(), ntohs(peer.v6.sin6_port), ntohl(peer.v6.sin6_flowinfo), peer.v6.sin6_scope_id
        )
    return ""


cdef inline int quick_ack(int fd):
    return everlog_quick_ack(fd)


cdef inline int close_file(int fd):
    return everlog_close(fd)


cdef inline long long now_ns():
    return everlog_now()


cdef inline int open_epoll() except -1:
    cdef int epoll = everlog_open_epoll()
    if epoll < 0:
        raise OSError("no epoll can be had")
    return epoll


cdef inline int number_of(int epoll):
    return epoll


cdef inline int close_epoll(int epoll):
    return everlog_close(epoll)


cdef inline int change_interest(int epoll, int fd, int before, int mask):
    return everlog_change(epoll, fd, before, mask)


cdef inline int find_ready(int epoll, int *fds, int *masks, int room):
    return everlog_ready(epoll, fds, masks, room)
