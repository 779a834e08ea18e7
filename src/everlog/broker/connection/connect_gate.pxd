cimport cython

from everlog.broker.delivery.router cimport Router
from everlog.broker.registry.registry cimport Registry
from everlog.sessions.session cimport Session


cdef class ConnectGate:
    cdef public dict pending
    cdef public bint is_closing
    cdef public object logins
    cdef public object _bucket, referrals
    cdef dict _entries, _turned_away
    cdef long long _files, _last_files, _few
    cdef Router _router
    cdef Registry _registry
    cdef object _holding, _subscriptions, _security, _limits, _agreements, _metrics, _time, _exchange, _answers

    cpdef forget(self, newcomer)

    @cython.locals(number=Py_ssize_t, is_last=bint)
    cpdef admit(self, newcomer)
    cdef _over(self, Py_ssize_t file_number)
    cpdef connecting(self, connection, packet)
    cdef _decided(self, connection, packet, admission)
    cpdef _accepted(self, connection, user, more)

    @cython.locals(session=Session)
    cdef _enter(self, connection, terms)
