cimport cython
from libc.stdint cimport uint32_t, uint64_t

from everlog.base.memory cimport blank, copy, filled, get32, get64, pointer, put32, put64, u32s
from everlog.base.records cimport Records


@cython.locals(total=Py_ssize_t, part=Records, rows=bytearray, start=Py_ssize_t, stop=Py_ssize_t, limit=Py_ssize_t,
               chosen="uint32_t*", k=Py_ssize_t)
cpdef Py_ssize_t count_rows(list pieces) except -1

@cython.locals(out="unsigned char*", at=Py_ssize_t, part=Records, rows=bytearray, start=Py_ssize_t, stop=Py_ssize_t,
               picked=bint, chosen="uint32_t*", raw="unsigned char*", offsets=Py_ssize_t, base=uint64_t, spread=bint,
               k=Py_ssize_t, row=Py_ssize_t)
cpdef bytes offset_column(list pieces)

@cython.locals(out="unsigned char*", at=Py_ssize_t, part=Records, rows=bytearray, start=Py_ssize_t, stop=Py_ssize_t,
               picked=bint, chosen="uint32_t*", raw="unsigned char*", times=Py_ssize_t, first=uint64_t,
               k=Py_ssize_t, row=Py_ssize_t)
cpdef bytes time_column(list pieces)

@cython.locals(out="unsigned char*", at=Py_ssize_t, part=Records, rows=bytearray, start=Py_ssize_t, stop=Py_ssize_t,
               picked=bint, chosen="uint32_t*", raw="unsigned char*", topics=Py_ssize_t, base=uint32_t,
               number=Py_ssize_t, k=Py_ssize_t, row=Py_ssize_t)
cpdef bytes topic_column(list pieces, list bases)

@cython.locals(total=Py_ssize_t, bits=bytearray, out="unsigned char*", retain="unsigned char*", at=Py_ssize_t,
               part=Records, rows=bytearray, start=Py_ssize_t, stop=Py_ssize_t, picked=bint, chosen="uint32_t*",
               raw="unsigned char*", flags=Py_ssize_t, flag="unsigned char", k=Py_ssize_t, row=Py_ssize_t)
cpdef tuple flag_columns(list pieces)

@cython.locals(out="unsigned char*", at=Py_ssize_t, part=Records, rows=bytearray, start=Py_ssize_t, stop=Py_ssize_t,
               picked=bint, chosen="uint32_t*", raw="unsigned char*", named=bint, publishers=Py_ssize_t, who=uint32_t,
               k=Py_ssize_t, row=Py_ssize_t)
cpdef bytes publisher_column(list pieces, uint32_t known)

@cython.locals(part=Records)
cpdef bint has_publishers(list pieces) except -1

cpdef tuple payload_column(list pieces)

cpdef tuple property_column(list pieces)

@cython.locals(part=Records)
cpdef bint has_properties(list pieces) except -1

@cython.locals(total=Py_ssize_t, size=Py_ssize_t, end="unsigned char*", out="unsigned char*", at=Py_ssize_t,
               number=Py_ssize_t, part=Records, rows=bytearray, start=Py_ssize_t, stop=Py_ssize_t, picked=bint,
               chosen="uint32_t*", raw="unsigned char*", theirs=Py_ssize_t, base=Py_ssize_t, k=Py_ssize_t,
               _k=Py_ssize_t, row=Py_ssize_t, begin=Py_ssize_t, wide=Py_ssize_t)
cdef tuple _values(list pieces, bint of_properties)

@cython.locals(raw="unsigned char*", theirs=Py_ssize_t, limit=Py_ssize_t, picked=bint, chosen="uint32_t*",
               total=Py_ssize_t, k=Py_ssize_t, row=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t)
cdef Py_ssize_t _bytes_of(Records part, bytearray rows, Py_ssize_t start, Py_ssize_t stop,
                          bint of_properties) except -1

@cython.locals(total=Py_ssize_t, theirs="uint32_t*", i=Py_ssize_t)
cdef Py_ssize_t _count_values(bytes ends, bytes data) except -1

@cython.locals(total=Py_ssize_t, known=Py_ssize_t, number="uint32_t*", theirs="uint32_t*", source="unsigned char*",
               size=Py_ssize_t, i=Py_ssize_t, k=Py_ssize_t, end="unsigned char*", out="unsigned char*", at=Py_ssize_t,
               begin=Py_ssize_t, wide=Py_ssize_t)
cpdef tuple take_texts(bytes numbers, bytes ends, bytes data)

@cython.locals(total=Py_ssize_t, known=Py_ssize_t, values=Py_ssize_t, number="uint32_t*", first="uint32_t*",
               theirs="uint32_t*", source="unsigned char*", count=Py_ssize_t, size=Py_ssize_t, i=Py_ssize_t,
               j=Py_ssize_t, k=Py_ssize_t, list_end="unsigned char*", end="unsigned char*", out="unsigned char*",
               at=Py_ssize_t, place=Py_ssize_t, begin=Py_ssize_t, wide=Py_ssize_t)
cpdef tuple take_lists(bytes numbers, bytes firsts, bytes ends, bytes data)

@cython.locals(total=Py_ssize_t, theirs="uint32_t*", bits=bytearray, valid="unsigned char*", i=Py_ssize_t)
cpdef bytes filled_values(bytes ends)

@cython.locals(room=Py_ssize_t, kind="unsigned char", size=Py_ssize_t)
cdef Py_ssize_t _property_bytes(const unsigned char* source, Py_ssize_t at, Py_ssize_t end) noexcept nogil

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t _find_property(const unsigned char* source, Py_ssize_t at, Py_ssize_t end, int kind) noexcept nogil

@cython.locals(total=Py_ssize_t, theirs="uint32_t*", source="unsigned char*", bits=bytearray, valid="unsigned char*",
               block=bytearray, out="unsigned char*", i=Py_ssize_t, at=Py_ssize_t, number=uint64_t)
cpdef tuple expiry_column(bytes ends, bytes data)

@cython.locals(total=Py_ssize_t, theirs="uint32_t*", source="unsigned char*", bits=bytearray, valid="unsigned char*",
               end="unsigned char*", values=bytearray, out="unsigned char*", filled_to=Py_ssize_t, i=Py_ssize_t,
               at=Py_ssize_t, size=Py_ssize_t)
cpdef tuple text_property_column(bytes ends, bytes data, int kind)

@cython.locals(total=Py_ssize_t, theirs="uint32_t*", source="unsigned char*", bits=bytearray, valid="unsigned char*",
               place="unsigned char*", most=Py_ssize_t, key_ends=bytearray, value_ends=bytearray, keys=bytearray,
               values=bytearray, key_end="unsigned char*", value_end="unsigned char*", key_out="unsigned char*",
               value_out="unsigned char*", count=Py_ssize_t, key_at=Py_ssize_t, value_at=Py_ssize_t, i=Py_ssize_t,
               at=Py_ssize_t, stop=Py_ssize_t, size=Py_ssize_t, wide=Py_ssize_t)
cpdef tuple user_property_columns(bytes ends, bytes data)

@cython.locals(wide=Py_ssize_t, size=Py_ssize_t, k=Py_ssize_t)
cdef bint _comes_again(const unsigned char* source, Py_ssize_t one, Py_ssize_t at, Py_ssize_t stop) noexcept nogil
