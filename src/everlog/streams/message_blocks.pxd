cimport cython
from libc.stdint cimport uint32_t

from everlog.base.memory cimport copy, get32, part, pointer, put32, room
from everlog.streams.fresh cimport Appended, appended


@cython.locals(count=Py_ssize_t, at=Py_ssize_t, most=Py_ssize_t, one=Appended, run=list)
cpdef list block_run(list records, Py_ssize_t start, long long next_seq, list ids)

@cython.locals(
    rows=Py_ssize_t, most=Py_ssize_t, apart="long long", first=Appended, one=Appended, size=Py_ssize_t,
    taken=Py_ssize_t, length=Py_ssize_t, block=bytearray, out="unsigned char*", at=Py_ssize_t, value_at=Py_ssize_t,
    k=Py_ssize_t
)
cpdef tuple pack_block(list run, Py_ssize_t start)

@cython.locals(
    block_first="long long", block_last="long long", position="long long", time_us="long long", data=bytes, found=list,
    source="const unsigned char*", size=Py_ssize_t, seq="long long", stop="long long", at=Py_ssize_t,
    begin="long long", length="long long", at_us="long long"
)
cpdef list block_messages(tuple block, long long first, long long last, long long most_bytes)
