# The inline C twins of memory.py. Pointers have no bounds: callers check every length first.
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_Check, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE, PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cdef extern from "Python.h":
    ctypedef struct PyObject
    PyObject *PyList_GET_ITEM(object buffers, Py_ssize_t place)
    Py_ssize_t Py_REFCNT(PyObject *buffer)
    PyObject *PyDict_GetItemWithError(object table, object key) except? NULL

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    #ifdef __linux__
    #include <sys/mman.h>
    #endif

    /* Asks for large pages where a block has whole ones: a fault for each of them, and few entries of the TLB. */
    static inline void everlog_huge(void *p, Py_ssize_t n) {
    #if defined(__linux__) && defined(MADV_HUGEPAGE)
        const uintptr_t page = (uintptr_t)2 << 20;
        uintptr_t begin = ((uintptr_t)p + page - 1) & ~(page - 1), end = ((uintptr_t)p + (uintptr_t)n) & ~(page - 1);
        if (begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
    #endif
    }

    static inline uint64_t everlog_mix(uint64_t a, uint64_t b) {
        __uint128_t r = (__uint128_t)a * b;
        return (uint64_t)r ^ (uint64_t)(r >> 64);
    }

    /* Folded-multiply hash: seeded per process so that a peer cannot choose colliding topics. */
    static inline uint32_t everlog_hash(const unsigned char *p, Py_ssize_t n, uint64_t seed) {
        uint64_t h = seed ^ (uint64_t)n * 0x9E3779B97F4A7C15ull, w, v;
        while (n >= 16) {
            memcpy(&w, p, 8); memcpy(&v, p + 8, 8);
            h = everlog_mix(w ^ 0xA0761D6478BD642Full ^ h, v ^ seed);
            p += 16; n -= 16;
        }
        w = 0; v = 0;
        if (n >= 8) { memcpy(&w, p, 8); memcpy(&v, p + n - 8, 8); }
        else if (n >= 4) { uint32_t x, y; memcpy(&x, p, 4); memcpy(&y, p + n - 4, 4); w = x; v = y; }
        else if (n > 0) { w = p[0] | (uint64_t)p[n >> 1] << 8 | (uint64_t)p[n - 1] << 16; }
        h = everlog_mix(w ^ 0xE7037ED1A0B428DBull ^ h, v ^ seed ^ 0x8EBC6AF09C88C6E3ull);
        return (uint32_t)(h ^ h >> 32);
    }

    static uint32_t everlog_crc_table[8][256];

    static void everlog_crc_tables(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
            everlog_crc_table[0][i] = c;
        }
        for (int t = 1; t < 8; t++)
            for (int i = 0; i < 256; i++) {
                uint32_t c = everlog_crc_table[t - 1][i];
                everlog_crc_table[t][i] = everlog_crc_table[0][c & 255] ^ c >> 8;
            }
    }

    static uint32_t everlog_crc_soft(const unsigned char *p, Py_ssize_t n, uint32_t c) {
        if (!everlog_crc_table[7][255]) everlog_crc_tables();
        c = ~c;
        while (n >= 8) {
            uint64_t w;
            memcpy(&w, p, 8);
            w ^= c;
            c = everlog_crc_table[7][w & 255] ^ everlog_crc_table[6][w >> 8 & 255]
              ^ everlog_crc_table[5][w >> 16 & 255] ^ everlog_crc_table[4][w >> 24 & 255]
              ^ everlog_crc_table[3][w >> 32 & 255] ^ everlog_crc_table[2][w >> 40 & 255]
              ^ everlog_crc_table[1][w >> 48 & 255] ^ everlog_crc_table[0][w >> 56];
            p += 8; n -= 8;
        }
        while (n--) c = everlog_crc_table[0][(c ^ *p++) & 255] ^ c >> 8;
        return ~c;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    /* The instruction takes three cycles, and one can begin in each: three ranges side by side are checked in the time
       of one. A check is moved over the bytes of the ranges behind it by table, since that is linear in its bytes. */
    #define EVERLOG_CRC_RANGE 1024
    static uint32_t everlog_crc_moved[4][256];
    static int everlog_crc_ready;  /* set when the table is whole: threads without the interpreter's lock use it */

    __attribute__((target("sse4.2")))
    static void everlog_crc_moves(void) {
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 256; i++) {
                uint64_t c = (uint64_t)((uint32_t)i << 8 * k);
                for (int n = 0; n < EVERLOG_CRC_RANGE; n += 8) c = __builtin_ia32_crc32di(c, 0);
                everlog_crc_moved[k][i] = (uint32_t)c;
            }
        __atomic_store_n(&everlog_crc_ready, 1, __ATOMIC_RELEASE);
    }

    static inline uint32_t everlog_crc_move(uint32_t c) {
        return everlog_crc_moved[0][c & 255] ^ everlog_crc_moved[1][c >> 8 & 255]
             ^ everlog_crc_moved[2][c >> 16 & 255] ^ everlog_crc_moved[3][c >> 24];
    }

    __attribute__((target("sse4.2")))
    static uint32_t everlog_crc_hard(const unsigned char *p, Py_ssize_t n, uint32_t before) {
        uint64_t c = (uint32_t)~before;
        if (n >= 3 * EVERLOG_CRC_RANGE && !__atomic_load_n(&everlog_crc_ready, __ATOMIC_ACQUIRE)) everlog_crc_moves();
        while (n >= 3 * EVERLOG_CRC_RANGE) {
            uint64_t c1 = 0, c2 = 0;
            for (int i = 0; i < EVERLOG_CRC_RANGE; i += 8) {
                uint64_t w0, w1, w2;
                memcpy(&w0, p + i, 8);
                memcpy(&w1, p + EVERLOG_CRC_RANGE + i, 8);
                memcpy(&w2, p + 2 * EVERLOG_CRC_RANGE + i, 8);
                c = __builtin_ia32_crc32di(c, w0);
                c1 = __builtin_ia32_crc32di(c1, w1);
                c2 = __builtin_ia32_crc32di(c2, w2);
            }
            c = everlog_crc_move(everlog_crc_move((uint32_t)c) ^ (uint32_t)c1) ^ c2;
            p += 3 * EVERLOG_CRC_RANGE; n -= 3 * EVERLOG_CRC_RANGE;
        }
        while (n >= 8) { uint64_t w; memcpy(&w, p, 8); c = __builtin_ia32_crc32di(c, w); p += 8; n -= 8; }
        uint32_t r = (uint32_t)c;
        if (n >= 4) { uint32_t w; memcpy(&w, p, 4); r = __builtin_ia32_crc32si(r, w); p += 4; n -= 4; }
        while (n--) r = __builtin_ia32_crc32qi(r, *p++);
        return ~r;
    }
    static inline uint32_t everlog_crc(const unsigned char *p, Py_ssize_t n, uint32_t c) {
        static int hard = -1;
        if (hard < 0) hard = __builtin_cpu_supports("sse4.2") ? 1 : 0;
        return hard ? everlog_crc_hard(p, n, c) : everlog_crc_soft(p, n, c);
    }
    #else
    static inline uint32_t everlog_crc(const unsigned char *p, Py_ssize_t n, uint32_t c) {
        return everlog_crc_soft(p, n, c);
    }
    #endif

    /* Well-formed UTF-8 (RFC 3629: no surrogates, nothing above U+10FFFF, no overlong form) and no U+0000. */
    static int everlog_text(const unsigned char *p, Py_ssize_t n) {
        Py_ssize_t i = 0;
        while (i < n) {
            unsigned char c = p[i];
            if (c < 0x80) {
                uint64_t w;  /* eight characters of ASCII at a time: none has its highest bit set, none is zero */
                while (n - i >= 8) {
                    memcpy(&w, p + i, 8);
                    if ((w | (w - 0x0101010101010101ull)) & 0x8080808080808080ull) break;
                    i += 8;
                }
                if (i >= n) return 1;
                c = p[i];
            }
            if (c < 0x80) { if (!c) return 0; i++; continue; }
            if (c < 0xC2) return 0;
            if (c < 0xE0) {
                if (n - i < 2 || (p[i + 1] & 0xC0) != 0x80) return 0;
                i += 2;
            } else if (c < 0xF0) {
                if (n - i < 3 || (p[i + 1] & 0xC0) != 0x80 || (p[i + 2] & 0xC0) != 0x80) return 0;
                if (c == 0xE0 && p[i + 1] < 0xA0) return 0;
                if (c == 0xED && p[i + 1] > 0x9F) return 0;
                i += 3;
            } else {
                if (c > 0xF4 || n - i < 4) return 0;
                if ((p[i + 1] & 0xC0) != 0x80 || (p[i + 2] & 0xC0) != 0x80 || (p[i + 3] & 0xC0) != 0x80) return 0;
                if (c == 0xF0 && p[i + 1] < 0x90) return 0;
                if (c == 0xF4 && p[i + 1] > 0x8F) return 0;
                i += 4;
            }
        }
        return 1;
    }
    """
    uint32_t everlog_hash(const unsigned char *p, Py_ssize_t n, uint64_t seed) nogil
    uint32_t everlog_crc(const unsigned char *p, Py_ssize_t n, uint32_t c) nogil
    int everlog_text(const unsigned char *p, Py_ssize_t n) nogil
    void everlog_huge(void *p, Py_ssize_t n) nogil
    void __builtin_prefetch(const void *p) nogil
    uint32_t __builtin_bswap32(uint32_t value) nogil
    uint64_t __builtin_bswap64(uint64_t value) nogil


cdef inline unsigned char* pointer(object buffer) except NULL:
    if PyBytes_Check(buffer):
        return <unsigned char*>PyBytes_AS_STRING(buffer)
    if PyByteArray_Check(buffer):
        return <unsigned char*>PyByteArray_AS_STRING(buffer)
    raise TypeError(f"expected bytes or bytearray, not {type(buffer).__name__}")


cdef inline unsigned char* pointer_at(object buffer, Py_ssize_t position) except NULL:
    return pointer(buffer) + position


cdef inline size_t address(object buffer) except? 0:
    return <size_t>pointer(buffer)


cdef inline bint is_shared(list buffers, Py_ssize_t place):
    return Py_REFCNT(PyList_GET_ITEM(buffers, place)) > 1


cdef inline uint16_t* u16s(object buffer) except NULL:
    return <uint16_t*>pointer(buffer)


cdef inline uint32_t* u32s(object buffer) except NULL:
    return <uint32_t*>pointer(buffer)


cdef inline uint64_t* u64s(object buffer) except NULL:
    return <uint64_t*>pointer(buffer)


cdef inline uint32_t get32(const unsigned char* source, Py_ssize_t position) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, source + position, 4)
    return value


cdef inline uint64_t get64(const unsigned char* source, Py_ssize_t position) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, source + position, 8)
    return value


cdef inline void put32(unsigned char* target, Py_ssize_t position, uint32_t value) noexcept nogil:
    memcpy(target + position, &value, 4)


cdef inline void put64(unsigned char* target, Py_ssize_t position, uint64_t value) noexcept nogil:
    memcpy(target + position, &value, 8)


cdef inline void put_high32(unsigned char* target, Py_ssize_t position, uint32_t value) noexcept nogil:
    put32(target, position, __builtin_bswap32(value))


cdef inline void put_high64(unsigned char* target, Py_ssize_t position, uint64_t value) noexcept nogil:
    put64(target, position, __builtin_bswap64(value))


cdef inline void copy(unsigned char* target, Py_ssize_t target_at, const unsigned char* source,
                      Py_ssize_t source_at, Py_ssize_t size) noexcept nogil:
    memcpy(target + target_at, source + source_at, size)


cdef inline bint equal(const unsigned char* one, Py_ssize_t one_at, const unsigned char* other,
                       Py_ssize_t other_at, Py_ssize_t size) noexcept nogil:
    return memcmp(one + one_at, other + other_at, size) == 0


cdef inline uint32_t hash_of(const unsigned char* source, Py_ssize_t start, Py_ssize_t size,
                             uint64_t seed) noexcept nogil:
    return everlog_hash(source + start, size, seed)


cdef inline uint32_t check_of(const unsigned char* source, Py_ssize_t start, Py_ssize_t size,
                              uint32_t before) noexcept nogil:
    return everlog_crc(source + start, size, before)


cdef inline bint text_ok(const unsigned char* source, Py_ssize_t start, Py_ssize_t size) noexcept nogil:
    return everlog_text(source + start, size)


cdef inline bytes part(const unsigned char* source, Py_ssize_t start, Py_ssize_t end):
    return PyBytes_FromStringAndSize(<const char*>source + start, end - start)


cdef inline object look_up(object table, object key):
    cdef PyObject* found = PyDict_GetItemWithError(table, key)
    return None if found is NULL else <object>found


cdef inline bytes blank(Py_ssize_t size):
    return PyBytes_FromStringAndSize(NULL, size)


cdef inline bytes filled(object block):
    return block


cdef inline bytearray room(Py_ssize_t size):
    return PyByteArray_FromStringAndSize(NULL, size)


cdef inline int resize(bytearray block, Py_ssize_t size) except -1:
    return PyByteArray_Resize(block, size)


cdef inline bytearray cleared(Py_ssize_t size):
    cdef bytearray block = PyByteArray_FromStringAndSize(NULL, size)
    advise_large_pages(block)
    memset(PyByteArray_AS_STRING(block), 0, size)
    return block


cdef inline int advise_large_pages(bytearray block) except -1:
    everlog_huge(PyByteArray_AS_STRING(block), PyByteArray_GET_SIZE(block))
    return 0


cdef inline void prefetch(const unsigned char* source, Py_ssize_t position) noexcept nogil:
    __builtin_prefetch(source + position)
