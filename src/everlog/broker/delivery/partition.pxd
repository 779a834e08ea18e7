cimport cython
from libc.stdint cimport uint32_t

from everlog.base.memory cimport get32, pointer, u32s
from everlog.base.records cimport Records


cdef class Partitioner:
    cdef bytearray counts

    @cython.locals(count=Py_ssize_t, known=Py_ssize_t, resolved=Py_ssize_t, name="uint32_t*", last=Py_ssize_t, raw="unsigned char*", topics=Py_ssize_t,
                   audience="uint32_t*", counts="uint32_t*", i=Py_ssize_t, topic=Py_ssize_t, which=uint32_t,
                   column="uint32_t*", start=Py_ssize_t, size=Py_ssize_t)
    cpdef object split(self, Records records, Py_ssize_t first_row, bytearray names, bytearray audience_of,
                       Py_ssize_t audiences, Py_ssize_t stop_row=*)


@cython.locals(mark="unsigned char*", total=Py_ssize_t, column="uint32_t*", k=Py_ssize_t, start=Py_ssize_t,
               stop=Py_ssize_t, out="uint32_t*", at=Py_ssize_t, i=Py_ssize_t)
cpdef bytearray merge_rows(list parts, Py_ssize_t count)
