cimport cython
from libc.stdint cimport uint64_t

from everlog.base.columns cimport AckRun, PublishRun
from everlog.base.memory cimport copy, pointer
from everlog.bench.load.checker cimport Checker
from everlog.bench.load.figures cimport Tally
from everlog.bench.load.posix cimport now_ns, receive, transmit
from everlog.bench.load.sender cimport Sender
from everlog.mqtt.inbound cimport Decoder
from everlog.mqtt.outbound cimport write_acks, write_answers


cdef class Link:
    cdef readonly int fd
    cdef readonly Decoder decoder
    cdef readonly bytearray buffer, out
    cdef readonly Tally tally
    cdef public Sender sender
    cdef public Checker checker
    cdef public bint open, slow
    cdef readonly list held
    cdef public list control
    cdef Py_ssize_t begin, end
    cdef bytes tail

    @cython.locals(size=Py_ssize_t)
    cpdef int put(self, data) except -1

    cdef int _reserve(self, Py_ssize_t size) except -1

    @cython.locals(told=int)
    cpdef int serve(self, bint readable) except -1

    @cython.locals(size=Py_ssize_t, _=int, held=Py_ssize_t, got=Py_ssize_t)
    cdef int _read(self) except -1

    @cython.locals(at=Py_ssize_t, events=list)
    cdef int _parse(self, Py_ssize_t end, uint64_t now) except -1

    @cython.locals(published=PublishRun, acked=AckRun)
    cdef int _take(self, event, uint64_t now) except -1

    cdef int _answer(self, bytes answers) except -1

    cpdef int release(self, Py_ssize_t size) except -1

    @cython.locals(sender=Sender, _=int, count=Py_ssize_t, fit=Py_ssize_t, put=Py_ssize_t)
    cpdef int write(self) except -1
