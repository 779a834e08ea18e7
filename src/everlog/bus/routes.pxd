cimport cython

from everlog.bus.delivery cimport Delivery


cdef class Routes:
    cdef dict _handlers, _found, _alike

    @cython.locals(delivery=Delivery, only=tuple, handlers=tuple)
    cpdef object dispatch(self, list deliveries)

    @cython.locals(delivery=Delivery, batches=dict)
    cdef object _dispatch_mixed(self, list deliveries)
