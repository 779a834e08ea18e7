cimport cython
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from everlog.base.columns cimport PublishRun
from everlog.base.memory cimport get32, pointer, u16s, u32s
from everlog.base.records cimport Records


cdef class Partitioner:
    cdef bytearray counts, rows

    @cython.locals(count=Py_ssize_t, known=Py_ssize_t, resolved=Py_ssize_t, name="uint32_t*", last=Py_ssize_t, raw="unsigned char*", topics=Py_ssize_t,
                   audience="uint32_t*", counts="uint32_t*", i=Py_ssize_t, topic=Py_ssize_t, which=uint32_t,
                   column="uint32_t*", start=Py_ssize_t, size=Py_ssize_t)
    cpdef object split(self, Records records, Py_ssize_t first_row, bytearray names, bytearray audience_of,
                       Py_ssize_t audiences, Py_ssize_t stop_row=*)


@cython.locals(mark="unsigned char*", total=Py_ssize_t, column="uint32_t*", k=Py_ssize_t, start=Py_ssize_t,
               stop=Py_ssize_t, out="uint32_t*", at=Py_ssize_t, i=Py_ssize_t)
cpdef bytearray merge_rows(list parts, Py_ssize_t count)

@cython.locals(topics="uint32_t*", last=Py_ssize_t, topic=Py_ssize_t, i=Py_ssize_t)
cpdef list distinct_topics(PublishRun run)

@cython.locals(flags="unsigned char*", ids="uint16_t*", bits="unsigned char*", dropped=Py_ssize_t, i=Py_ssize_t,
               place=Py_ssize_t, bit=int)
cpdef Py_ssize_t drop_known(PublishRun run, bytearray received) except -1

@cython.locals(column="uint16_t*", bits="unsigned char*", count=Py_ssize_t, k=Py_ssize_t, place=Py_ssize_t, bit=int)
cpdef Py_ssize_t forget_ids(bytes ids, bytearray received) except -1

@cython.locals(column="uint16_t*", bits="unsigned char*", count=Py_ssize_t, k=Py_ssize_t)
cpdef Py_ssize_t known_ids(bytes ids, bytearray received) except -1

@cython.locals(flags="unsigned char*", count=Py_ssize_t, i=Py_ssize_t)
cpdef Py_ssize_t count_qos_2(PublishRun run) except -1

@cython.locals(flags="unsigned char*", topics="uint32_t*", marks="unsigned char*", known=Py_ssize_t,
               dropped=Py_ssize_t, i=Py_ssize_t)
cpdef Py_ssize_t drop_reserved(PublishRun run, bytearray reserved) except -1
