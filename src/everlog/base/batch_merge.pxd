cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from everlog.base.memory cimport blank, check_of, copy, filled, get32, pointer, put32, u32s
from everlog.base.records cimport Layout, Records, marked, pad
from everlog.base.topic_table cimport TopicTable


@cython.locals(stop=Py_ssize_t, first=Py_ssize_t, rows=bytearray, known=Py_ssize_t, want="unsigned char*",
               raw="unsigned char*", at=Py_ssize_t, out="uint32_t*", found=Py_ssize_t, i=Py_ssize_t,
               topic=Py_ssize_t)
cpdef bytearray select(Records records, object wanted, Py_ssize_t first_row=*, Py_ssize_t stop_row=*)

@cython.locals(picks=bint, count=Py_ssize_t, property_bytes=Py_ssize_t, payload_bytes=Py_ssize_t, new=Py_ssize_t,
               name_bytes=Py_ssize_t, with_properties=bint, with_publishers=bint, with_ids=bint,
               new_publishers=Py_ssize_t, publisher_bytes=Py_ssize_t, first_publisher=Py_ssize_t, first=Records, before=Records, part=Records,
               rows=bytearray, at_least=uint64_t, kind=uint32_t, plan=Layout, writer=BatchWriter)
cpdef Records gather(list parts, bint verified=*)

cdef int _check_follows(Records before, Records part) except -1

@cython.locals(known=int64_t, part=Records)
cdef int _check_publishers(list parts) except -1

@cython.locals(raw="unsigned char*", chosen="uint32_t*", ends=Py_ssize_t, limit=Py_ssize_t, total=Py_ssize_t,
               previous=Py_ssize_t, k=Py_ssize_t, row=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t)
cdef Py_ssize_t _chosen(Records part, bytearray rows, bint of_properties) except -1


cdef class BatchWriter:
    cdef Layout plan
    cdef object block
    cdef bytearray mark
    cdef Py_ssize_t at, names, name_at, publisher_names, publisher_at, property_at, payload_at
    cdef bint with_properties, with_offsets
    cdef uint64_t first_time, last_time, base_offset

    @cython.locals(raw="unsigned char*", time_us=uint64_t)
    cdef int _open(self, Records part, Py_ssize_t row) except -1

    @cython.locals(raw="unsigned char*", out="unsigned char*", plan=Layout, theirs=Layout, base=Py_ssize_t,
                   count=Py_ssize_t, at=Py_ssize_t, i=Py_ssize_t, end=uint32_t, names=Py_ssize_t)
    cdef int whole(self, Records part, bint with_names) except -1

    @cython.locals(raw="unsigned char*", out="unsigned char*", start=Py_ssize_t, target=Py_ssize_t, i=Py_ssize_t)
    cdef int _shift(self, Records part, Py_ssize_t to, Py_ssize_t source, uint32_t more, Py_ssize_t count) except -1

    @cython.locals(chosen="uint32_t*", wanted=Py_ssize_t, raw="unsigned char*", out="unsigned char*",
                   mark="unsigned char*", plan=Layout, theirs=Layout, base=Py_ssize_t, ahead=int64_t, k=Py_ssize_t,
                   row=Py_ssize_t, at=Py_ssize_t, begin=Py_ssize_t, size=Py_ssize_t, property_begin=Py_ssize_t,
                   property_size=Py_ssize_t, time=uint32_t, topic=uint32_t, flag="unsigned char",
                   expected=uint32_t, found=uint32_t)
    cdef int some(self, Records part, bytearray rows, bint check) except -1

    @cython.locals(plan=Layout, out="unsigned char*")
    cdef Records finish(self, TopicTable table, uint32_t first_new_topic)
