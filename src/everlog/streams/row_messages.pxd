cimport cython


cpdef object message_of(tuple row)

@cython.locals(row=tuple)
cpdef Py_ssize_t take_messages(list rows, list found, Py_ssize_t room) except? -1
