cimport cython

from everlog.broker.delivery.router cimport Router
from everlog.broker.registry.filter_runs cimport FilterRuns
from everlog.sessions.session cimport Session


cdef class Subscriptions:
    cdef public object memory
    cdef tuple _kept
    cdef Router _router
    cdef FilterRuns _runs
    cdef object _groups, _replays, _security, _limits, _metrics, _write_behind

    cdef _grant_next(self, Session session, wanted, packet, answer, dict granted)
    cdef _grant_one(self, Session session, asked, packet, answer)

    @cython.locals(text=str, in_order=bint, wants_retained=bint)
    cdef _one(self, Session session, asked, packet, answer)

    @cython.locals(of_log=bint)
    cdef _check(self, Session session, str text, bint replays, bint in_order)
    cdef _parse(self, str text)
    cpdef count(self, Session session)
    cdef _put(self, Session session, flt, subscribed)
    cdef _mark(self, Session session, text)
    cdef _withdraw(self, Session session, flt)


cdef bint _ends_step(Py_ssize_t number, str text) except -1
