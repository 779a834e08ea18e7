# The inline C twin of raw_write.py.
from cpython.bytearray cimport PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from libc.stdlib cimport calloc, free, malloc

from everlog.base.memory cimport pointer

cdef extern from *:
    """
    #include <errno.h>
    #include <limits.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/uio.h>
    #include <time.h>
    #include <unistd.h>
    #ifdef __linux__
    #include <linux/futex.h>
    #include <sys/syscall.h>
    #endif

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

    /* Pieces of a direct write: what is in the buffer from `from` on goes behind them. */
    typedef struct { struct iovec v[64]; int n; size_t from, size; } everlog_pieces;

    static void everlog_piece(everlog_pieces *p, char *base, size_t size) {
        if (!size) return;
        p->v[p->n].iov_base = base; p->v[p->n].iov_len = size;
        p->n++; p->size += size;
    }

    static int everlog_write_pieces(int direct_fd, everlog_pieces *p, long long *at) {
        ssize_t w;
        if (!p->n) return 0;
        do w = pwritev(direct_fd, p->v, p->n, (off_t)*at); while (w < 0 && errno == EINTR);
        if (w != (ssize_t)p->size) return w < 0 ? errno : EINVAL;
        *at += w;
        p->n = 0; p->size = p->from = 0;
        return 0;
    }

    static int everlog_write_around(int fd, int direct_fd, long long at, struct iovec *v, Py_ssize_t n,
                                    char *buffer, size_t room, size_t page, int sync,
                                    int mark_fd, const char *mark, Py_ssize_t mark_size) {
        everlog_pieces p = {.n = 0, .from = 0, .size = 0};
        size_t used = at % page, rest;
        int failed;
        at -= used;
        for (; n; v++, n--) while (v->iov_len) {
            char *base = v->iov_base;
            size_t size = v->iov_len, head = (page - used % page) % page;
            if (size >= head + 2 * page && (size_t)base % page == used % page) {
                memcpy(buffer + used, base, head);
                used += head;
                size = (size - head) / page * page;
                everlog_piece(&p, buffer + p.from, used - p.from);
                everlog_piece(&p, base + head, size);
                p.from = used;
                size += head;
            } else {
                if (size > room - used) size = room - used;
                memcpy(buffer + used, base, size);
                used += size;
            }
            v->iov_base = base + size; v->iov_len -= size;
            if (used == room || p.n > 60) {  /* whole pages in both cases */
                everlog_piece(&p, buffer + p.from, used - p.from);
                if ((failed = everlog_write_pieces(direct_fd, &p, &at))) return failed;
                used = 0;
            }
        }
        rest = used % page;
        if (rest) memset(buffer + used, 0, page - rest);
        everlog_piece(&p, buffer + p.from, used - p.from + (rest ? page - rest : 0));
        if ((failed = everlog_write_pieces(direct_fd, &p, &at))) return failed;
        memmove(buffer, buffer + used - rest, rest);
        return everlog_write_all(fd, 0, v, 0, sync, mark_fd, mark, mark_size);
    }

    typedef struct {
        unsigned begun, done;  /* how many; the thread sleeps on the first, whoever waits for it on the second */
        int stopping, fd, mark_fd, failed;
        long long at;
        struct iovec *v;
        Py_ssize_t n, mark_size;
        const char *mark;
        pthread_t thread;
    } everlog_aside;

    #ifdef __linux__
    static void everlog_sleep_on(unsigned *word, unsigned value, const struct timespec *longest) {
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, longest, NULL, 0);
    }

    static void everlog_wake_up(unsigned *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

    static void *everlog_aside_run(void *given) {
        everlog_aside *a = given;
        for (unsigned seen = 0;;) {
            while (__atomic_load_n(&a->begun, __ATOMIC_ACQUIRE) == seen) everlog_sleep_on(&a->begun, seen, NULL);
            seen++;
            if (a->stopping) return NULL;
            a->failed = everlog_write_all(a->fd, a->at, a->v, a->n, 1, a->mark_fd, a->mark, a->mark_size);
            __atomic_store_n(&a->done, seen, __ATOMIC_RELEASE);
            everlog_wake_up(&a->done);
        }
    }

    static int everlog_aside_start(everlog_aside *a) {
        pthread_attr_t attributes;
        sigset_t all, before;
        size_t stack = 128 << 10;
        int failed = pthread_attr_init(&attributes);
        if (failed) return failed;
        pthread_attr_setstacksize(&attributes, stack < PTHREAD_STACK_MIN ? PTHREAD_STACK_MIN : stack);
        sigfillset(&all);  /* signals are for the interpreter's threads */
        pthread_sigmask(SIG_SETMASK, &all, &before);
        failed = pthread_create(&a->thread, &attributes, everlog_aside_run, a);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
        return failed;
    }

    static void everlog_aside_begin(everlog_aside *a) {
        __atomic_store_n(&a->begun, a->begun + 1, __ATOMIC_RELEASE);
        everlog_wake_up(&a->begun);
    }

    static int everlog_aside_wait(everlog_aside *a, long long wait_ns) {
        struct timespec now, end;
        clock_gettime(CLOCK_MONOTONIC, &end);
        if (wait_ns > 0) {
            wait_ns += end.tv_nsec;
            end.tv_sec += wait_ns / 1000000000;
            end.tv_nsec = wait_ns % 1000000000;
        }
        for (;;) {
            unsigned done = __atomic_load_n(&a->done, __ATOMIC_ACQUIRE);
            if (done == a->begun) return 1;
            if (wait_ns < 0) { everlog_sleep_on(&a->done, done, NULL); continue; }
            clock_gettime(CLOCK_MONOTONIC, &now);
            long long left = (end.tv_sec - now.tv_sec) * 1000000000LL + end.tv_nsec - now.tv_nsec;
            if (left <= 0) return 0;
            struct timespec longest = {left / 1000000000, left % 1000000000};
            everlog_sleep_on(&a->done, done, &longest);
        }
    }

    static void everlog_aside_end(everlog_aside *a) {
        a->stopping = 1;
        everlog_aside_begin(a);
        pthread_join(a->thread, NULL);
    }
    #else  /* no thread: what is begun is done at once */
    static int everlog_aside_start(everlog_aside *a) { (void)a; return 0; }
    static void everlog_aside_begin(everlog_aside *a) {
        a->failed = everlog_write_all(a->fd, a->at, a->v, a->n, 1, a->mark_fd, a->mark, a->mark_size);
    }
    static int everlog_aside_wait(everlog_aside *a, long long wait_ns) { (void)a; (void)wait_ns; return 1; }
    static void everlog_aside_end(everlog_aside *a) { (void)a; }
    #endif
    """
    ctypedef struct iovec "struct iovec":
        void *iov_base
        size_t iov_len
    int everlog_write_all(int fd, long long at, iovec *v, Py_ssize_t n, int sync, int mark_fd, const char *mark,
                          Py_ssize_t mark_size) nogil
    ctypedef struct everlog_aside:
        int failed, fd, mark_fd
        long long at
        iovec *v
        Py_ssize_t n, mark_size
        const char *mark
    int everlog_aside_start(everlog_aside *a)
    void everlog_aside_begin(everlog_aside *a) nogil
    bint everlog_aside_wait(everlog_aside *a, long long wait_ns) nogil
    void everlog_aside_end(everlog_aside *a) nogil
    size_t everlog_page()
    int everlog_write_around(int fd, int direct_fd, long long at, iovec *v, Py_ssize_t n, char *buffer, size_t room,
                             size_t page, int sync, int mark_fd, const char *mark, Py_ssize_t mark_size) nogil


cdef inline iovec *vector_of(object blocks) except NULL:
    cdef Py_ssize_t n = len(blocks), k
    cdef object block
    cdef const unsigned char[::1] view
    cdef iovec *vector = <iovec*>malloc((n + 1) * sizeof(iovec))
    if vector == NULL:
        raise MemoryError()
    try:
        for k in range(n):
            block = blocks[k]
            if isinstance(block, memoryview):  # of a part of a block
                view = block
                vector[k].iov_base = <void*>&view[0] if view.shape[0] else NULL
                vector[k].iov_len = view.shape[0]
                continue
            vector[k].iov_base = pointer(block)
            vector[k].iov_len = PyBytes_GET_SIZE(block) if PyBytes_Check(block) else PyByteArray_GET_SIZE(block)
    except (TypeError, ValueError):
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
    int fd, int direct_fd, long long position, object blocks, unsigned char[::1] buffer, bint sync,
    int mark_fd, bytes mark
) except -1:
    cdef Py_ssize_t n = len(blocks), mark_size = PyBytes_GET_SIZE(mark)
    cdef const char *mark_at = PyBytes_AS_STRING(mark)
    cdef size_t room = buffer.shape[0], page = everlog_page()
    cdef int failed
    cdef iovec *vector = vector_of(blocks)
    with nogil:
        failed = everlog_write_around(
            fd, direct_fd, position, vector, n, <char*>&buffer[0], room, page, sync, mark_fd, mark_at, mark_size
        )
    free(vector)
    return failed


cdef inline everlog_aside *start_aside() except NULL:
    cdef everlog_aside *thread = <everlog_aside*>calloc(1, sizeof(everlog_aside))
    if thread == NULL:
        raise MemoryError()
    cdef int failed = everlog_aside_start(thread)
    if failed:
        free(thread)
        raise OSError(failed, "no thread for syncs")
    return thread


cdef inline bint begin_aside(
    everlog_aside *thread, int fd, long long position, object blocks, int mark_fd, bytes mark, long long wait_ns
) except -1:
    cdef iovec *vector = vector_of(blocks)
    cdef bint done
    free(thread.v)
    thread.v = vector
    thread.n = len(blocks)
    thread.fd, thread.at, thread.mark_fd = fd, position, mark_fd
    thread.mark, thread.mark_size = PyBytes_AS_STRING(mark), PyBytes_GET_SIZE(mark)
    with nogil:
        everlog_aside_begin(thread)
        done = everlog_aside_wait(thread, wait_ns)
    return done


cdef inline int wait_aside(everlog_aside *thread) except -1:
    with nogil:
        everlog_aside_wait(thread, -1)
    return 0


cdef inline int failed_aside(everlog_aside *thread) noexcept:
    return thread.failed


cdef inline int end_aside(everlog_aside *thread) except -1:
    with nogil:
        everlog_aside_end(thread)
    free(thread.v)
    free(thread)
    return 0
