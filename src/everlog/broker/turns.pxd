cimport cython


cdef class Work:
    cdef object _steps, _then, _failed

    cpdef drop(self)
    cpdef go_on(self, double until, clock)


cdef class Turns:
    cdef object _soon, _clock, _line
    cdef double _until
    cdef bint _asked

    @cython.locals(work=Work, now=double)
    cpdef Work run(self, steps, then, failed)

    @cython.locals(work=Work)
    cpdef Work later(self, steps, then, failed)
    cdef _ask(self)

    @cython.locals(work=Work, now=double)
    cpdef _turn(self)
