cimport cython

from everlog.mqtt.primitives cimport Reader


@cython.locals(data=bytes, begin=Py_ssize_t, end=Py_ssize_t)
cpdef str _filter_again(Reader reader)

@cython.locals(options=int, text=str)
cpdef _subscription_again(Reader reader)

cpdef str _read_filter(Reader reader)

@cython.locals(qos=int)
cpdef _read_3_1_1(Reader reader)
