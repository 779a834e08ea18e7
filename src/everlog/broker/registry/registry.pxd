cimport cython

from everlog.broker.delivery.router cimport Router
from everlog.broker.turns cimport Turns
from everlog.sessions.session cimport Session


cdef class Registry:
    cdef public dict sessions, clients, asleep
    cdef public object copies, expiry, wills, write_behind
    cdef public Router router
    cdef Router _router
    cdef object _groups, _subscriptions, _security, _limits, _metrics, _write_behind, _holding
    cdef Turns _turns
    cdef tuple _begin_at
    cdef dict _ending
    cdef Py_ssize_t _transient
    cdef bint _is_listening

    @cython.locals(client_id=str)
    cpdef check(self, client, terms)

    @cython.locals(client_id=str, session=Session)
    cpdef bint make_way(self, terms, then) except -1

    @cython.locals(client_id=str, session=Session, present=bint, waits=bint)
    cpdef open(self, client, terms)

    cdef bint _must_store(self, terms, Session old) except -1

    @cython.locals(is_new=bint)
    cdef _check_memory(self, client, terms)

    @cython.locals(session=Session)
    cdef Session _begin(self, client, str client_id, bint lasting)

    @cython.locals(session=Session)
    cdef bint _is_anothers(self, str client_id, user, bint to_end_it) except -1
    cpdef lost(self, client, Session session)

    @cython.locals(session=Session)
    cpdef Session find(self, client_id)

    @cython.locals(session=Session)
    cdef Session _peek(self, client_id)
    cdef _schedule(self, Session session)
    cdef _mark(self, Session session)
