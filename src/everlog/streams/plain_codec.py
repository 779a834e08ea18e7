"""Plain requests and their answers as bytes: MessagePack as `requests`, `effects` and `replies` have it.

A request is plain if nothing in it is out of the ordinary: a value appended to a stream or put to a key, or a key's
value asked for. Whatever else it may be is left to the decoder that knows everything, so nothing is refused here.
Above 400 lines: reading and writing share what is inlined within one module only.
"""

from typing import Any

import cython

if not cython.compiled:
    from everlog.base.memory import Buffer, copy, equal, part, pointer, put64, put_high32, put_high64, resize
    from everlog.streams.fresh import Appended

NOTHING_PLAIN, SET, PUT, GET = 0, 1, 2, 3

_SET, _PUT, _GET = b"\xa3set", b"\xa3put", b"\xa6kv_get"
_OK, _WRITTEN, _ENTRIES = b"\xa2ok", b"\xa7written", b"\xa7entries"
_NIL, _FALSE, _TRUE = 0xC0, 0xC2, 0xC3
HEAD_BYTES = 16  # of an answer: a prefix of 8, and the id of whom it is for


class PlainCall:
    """A plain request, as ranges of the bytes it lies in; read into again and again. A size of -1 is an absent one."""

    def __init__(self) -> None:
        self.op = NOTHING_PLAIN
        self.key_at = 0
        self.key_size = -1
        self.value_at = 0
        self.value_size = -1
        self.id_at = 0
        self.id_size = -1
        self.level = 1
        self.max_bytes = 0
        self.seen_epoch = 0
        self.seen_position = -1
        self._at = 0
        self._end = 0
        self._number = 0
        self._size = 0

    def read(self, data: bytes, at: int, name: bytes) -> int:
        """Read the `Call` that begins at a place, on the stream of this name; return which one, or NOTHING_PLAIN."""
        source = pointer(data)
        self.op = NOTHING_PLAIN
        self._at = at
        self._end = len(data)
        self.key_size = self.value_size = self.id_size = -1
        self.level = 1
        self.max_bytes = 0
        self.seen_epoch = 0
        self.seen_position = -1
        fields = self._array(source)
        if fields < 1 or fields > 4:
            return NOTHING_PLAIN
        op = self._request(source, name)
        if op == NOTHING_PLAIN:
            return NOTHING_PLAIN
        if fields > 1:
            if not self._int(source):
                return NOTHING_PLAIN
            self.seen_epoch = self._number
        if fields > 2:
            if not self._int(source):
                return NOTHING_PLAIN
            self.seen_position = self._number
        if (fields > 3 and not self._is(source, _NIL)) or self._at != self._end:
            return NOTHING_PLAIN
        self.op = op
        return op

    def _request(self, source: "Buffer", name: bytes) -> int:
        fields = self._array(source)
        op = NOTHING_PLAIN
        if self._skip(source, _SET):
            op = SET
        elif self._skip(source, _PUT):
            op = PUT
        elif self._skip(source, _GET):
            op = GET
        if op == NOTHING_PLAIN or fields < 3 or not self._text(source):
            return NOTHING_PLAIN
        if self._size != len(name) or not equal(source, self._at - self._size, pointer(name), 0, self._size):
            return NOTHING_PLAIN
        if op == SET:
            return self._set(source, fields)
        if not self._text(source):
            return NOTHING_PLAIN
        self.key_at = self._at - self._size
        self.key_size = self._size
        if op == PUT:
            return self._put(source, fields)
        if fields > 4:
            return NOTHING_PLAIN
        if fields > 3:
            if not self._int(source) or self._number < 0:
                return NOTHING_PLAIN
            self.max_bytes = self._number
        return GET

    def _set(self, source: "Buffer", fields: int) -> int:
        if fields > 10 or not self._message(source):
            return NOTHING_PLAIN
        if (
            (fields > 3 and not self._is(source, _NIL))  # seq
            or (fields > 4 and not self._message_id(source))
            or (fields > 5 and not self._is(source, 0))  # ttl_us
            or (fields > 6 and not self._level(source))
            or (fields > 7 and not self._is(source, _NIL))  # expected_last_seq
            or (fields > 8 and not self._is(source, _FALSE))  # must_be_new
            or (fields > 9 and not self._is(source, _NIL))  # upload
        ):
            return NOTHING_PLAIN
        return SET

    def _put(self, source: "Buffer", fields: int) -> int:
        if fields < 4 or fields > 8 or not self._message(source):
            return NOTHING_PLAIN
        if (
            (fields > 4 and not self._message_id(source))
            or (fields > 5 and not self._is(source, 0))  # ttl_us
            or (fields > 6 and not self._level(source))
            or (fields > 7 and not self._is(source, _NIL))  # upload
        ):
            return NOTHING_PLAIN
        return PUT

    def _message(self, source: "Buffer") -> bool:
        """Read a message that has a value, or an absent one, and nothing else."""
        fields = self._array(source)
        if fields < 0 or fields > 3:
            return False
        if fields > 0 and not self._is(source, _NIL):
            if not self._bytes(source):
                return False
            self.value_at = self._at - self._size
            self.value_size = self._size
        return not (fields > 1 and not self._is(source, _NIL)) and not (fields > 2 and not self._is(source, _NIL))

    def _message_id(self, source: "Buffer") -> bool:
        if self._is(source, _NIL):
            return True
        if not self._text(source):
            return False
        self.id_at = self._at - self._size
        self.id_size = self._size
        return True

    def _level(self, source: "Buffer") -> bool:
        """Read `memory` or `fsync`."""
        if not self._int(source) or self._number < 0 or self._number > 1:
            return False
        self.level = self._number
        return True

    # ---- MessagePack; `_at` is never above `_end` ----

    def _is(self, source: "Buffer", byte: int) -> bool:
        """Pass over one byte if it is this one."""
        if self._at < self._end and source[self._at] == byte:
            self._at += 1
            return True
        return False

    def _skip(self, source: "Buffer", these: bytes) -> bool:
        """Pass over some bytes if they are these."""
        size = len(these)
        if self._end - self._at < size or not equal(source, self._at, pointer(these), 0, size):
            return False
        self._at += size
        return True

    def _array(self, source: "Buffer") -> int:
        """Read the length of a short array; -1 for anything else."""
        if self._at < self._end and source[self._at] >> 4 == 9:
            self._at += 1
            return source[self._at - 1] & 15
        return -1

    def _big(self, source: "Buffer", size: int) -> bool:
        """Read a number of so many bytes, the highest first; False if it is not whole, or 2**62 or above (`MOST`)."""
        if self._end - self._at < size or (size == 8 and source[self._at] > 63):
            return False
        self._number = 0
        for _ in range(size):
            self._number = self._number << 8 | source[self._at]
            self._at += 1
        return True

    def _text(self, source: "Buffer") -> bool:
        """Pass over a string of up to 65,535 bytes."""
        if self._at >= self._end:
            return False
        first = source[self._at]
        self._at += 1
        if first >> 5 == 5:
            self._size = first & 31
        elif (first == 0xD9 and self._big(source, 1)) or (first == 0xDA and self._big(source, 2)):
            self._size = self._number
        else:
            return False
        return self._pass(self._size)

    def _bytes(self, source: "Buffer") -> bool:
        """Pass over bytes."""
        if self._at >= self._end:
            return False
        first = source[self._at]
        self._at += 1
        if (
            (first == 0xC4 and self._big(source, 1))
            or (first == 0xC5 and self._big(source, 2))
            or (first == 0xC6 and self._big(source, 4))
        ):
            self._size = self._number
            return self._pass(self._size)
        return False

    def _pass(self, size: int) -> bool:
        if self._end - self._at < size:
            return False
        self._at += size
        return True

    def _int(self, source: "Buffer") -> bool:
        """Read a whole number; of those below 0, only the short form."""
        if self._at >= self._end:
            return False
        first = source[self._at]
        self._at += 1
        if first < 128:
            self._number = first
            return True
        if first >= 0xE0:
            self._number = first
            self._number -= 256
            return True
        if first == 0xCC:
            return self._big(source, 1)
        if first == 0xCD:
            return self._big(source, 2)
        if first == 0xCE:
            return self._big(source, 4)
        if first == 0xCF:
            return self._big(source, 8)
        return False


class Packer:
    """Renders records and answers. An answer begins with `prefix`, of 8 bytes, and the id of whom it is for."""

    def __init__(self, prefix: bytes = bytes(8)) -> None:
        self._prefix = prefix
        self.room = bytearray(4096)
        self._at = 0

    def record(self, one: "Appended") -> bytes:
        """Return a plain write as the bytes of its `Record`."""
        size = self.pack(one)
        return part(pointer(self.room), 0, size)

    def pack(self, one: "Appended") -> int:
        """Write a plain write into `room` as the bytes of its `Record`; return how many they are."""
        value: bytes | None = one.value
        size = 0 if value is None else len(value)
        if one.key is None and one.message_id is None:
            data = b"" if value is None else value
            size = -1 if value is None else size
            return self.append(
                one.epoch, one.previous, one.time_us, one.seq, one.messages, one.bytes, data, 0, size
            )  # fmt: skip
        key = b"" if one.key is None else one.key.encode()
        id = b"" if one.message_id is None else one.message_id.encode()
        self._begin(256 + size + len(key) + len(id))
        out = pointer(self.room)
        self._byte(out, 0x9B)
        self._number(out, one.epoch)
        self._number(out, one.previous)
        self._number(out, one.time_us)
        self._number(out, one.seq)
        self._number(out, one.messages)
        self._number(out, one.bytes)
        self._byte(out, 0x91)
        if one.key is None:
            self._byte(out, 0x99)
            self._byte(out, 0)
            self._number(out, one.seq)
        else:
            self._byte(out, 0x9A)
            self._byte(out, 2)
            self._text(out, key)
            self._number(out, one.seq)
        self._value(out, value)
        self._rest(out)
        if one.message_id is None:
            self._byte(out, _NIL)
        else:
            self._text(out, id)
        self._number(out, one.seq)
        self._byte(out, 1)
        self._byte(out, _NIL)
        return self._at

    def append(
        self, epoch: int, previous: int, time_us: int, seq: int, messages: int, total: int, data: bytes, at: int,
        size: int,
    ) -> int:  # fmt: skip
        """Write a record into `room` as `pack` does: that a value, which is at a place in some bytes, was appended.

        A size of -1 is an absent value.
        """
        self._begin(256 + (0 if size < 0 else size))
        out = pointer(self.room)
        self._byte(out, 0x9B)
        self._number(out, epoch)
        self._number(out, previous)
        self._number(out, time_us)
        self._number(out, seq)
        self._number(out, messages)
        self._number(out, total)
        self._byte(out, 0x91)
        self._byte(out, 0x99)
        self._byte(out, 0)
        self._number(out, seq)
        if size < 0:
            self._byte(out, _NIL)
        else:
            self._size(out, size)
            copy(out, self._at, pointer(data), at, size)
            self._at += size
        self._rest(out)
        self._byte(out, _NIL)
        self._number(out, seq)
        self._byte(out, 1)
        self._byte(out, _NIL)
        return self._at

    def _rest(self, out: bytearray) -> int:
        """Write what a plain effect does not have: headers, timestamp, expiry, upload, size, time of a copy."""
        self._byte(out, _NIL)
        self._byte(out, _NIL)
        self._byte(out, 0)
        self._byte(out, _NIL)
        self._byte(out, 0)
        self._byte(out, 0)
        return 0

    def written(self, id: int, epoch: int, level: int, one: "Appended") -> bytes:
        """Return the `Reply` that a plain write is done."""
        return self.done(id, epoch, level, one.position, one.time_us, one.seq, one.previous)

    def done(self, id: int, epoch: int, level: int, position: int, time_us: int, seq: int, previous: int) -> bytes:
        """Return the `Reply` that a plain write is done, of which these are the facts."""
        self._begin(256)
        out = pointer(self.room)
        self._head(out, id, epoch, position, level)
        self._byte(out, 0x98)
        self._all(out, _WRITTEN)
        self._number(out, seq)
        self._number(out, time_us)
        self._number(out, position)
        self._number(out, previous)
        self._byte(out, _FALSE)
        self._byte(out, _NIL)
        self._byte(out, 1)
        self._byte(out, _TRUE)
        return part(out, 0, self._at)

    def entry(
        self, id: int, epoch: int, position: int, key: bytes, revision: int, time_us: int, value: Any, expires_us: int,
        at: int,
    ) -> bytes:  # fmt: skip
        """Return the `Reply` that has one entry of a store, written at a position, with the shard at another."""
        size = 0 if value is None else len(value)
        self._begin(256 + size + len(key))
        out = pointer(self.room)
        self._head(out, id, epoch, position, 1)
        self._byte(out, 0x93)
        self._all(out, _ENTRIES)
        self._byte(out, 0x91)
        self._byte(out, 0x9A)
        self._text(out, key)
        self._number(out, revision)
        self._number(out, time_us)
        self._value(out, value)
        self._byte(out, _NIL)
        self._byte(out, _NIL)
        self._number(out, expires_us)
        self._number(out, at)
        self._number(out, size)
        self._byte(out, _FALSE)
        self._byte(out, _TRUE)
        self._byte(out, _TRUE)
        return part(out, 0, self._at)

    def framed(self, id: int, body: bytes) -> bytes:
        """Return an answer that somebody else has encoded."""
        size = len(body)
        self._begin(HEAD_BYTES + size)
        out = pointer(self.room)
        copy(out, 0, pointer(self._prefix), 0, 8)
        put64(out, 8, id)
        copy(out, HEAD_BYTES, pointer(body), 0, size)
        return part(out, 0, HEAD_BYTES + size)

    # ---- MessagePack; `_begin` has made room ----

    def _begin(self, size: int) -> int:
        if len(self.room) < size:
            resize(self.room, 2 * size)
        self._at = 0
        return 0

    def _head(self, out: bytearray, id: int, epoch: int, position: int, level: int) -> int:
        copy(out, 0, pointer(self._prefix), 0, 8)
        put64(out, 8, id)
        self._at = HEAD_BYTES
        self._byte(out, 0x96)
        self._all(out, _OK)
        self._number(out, epoch)
        self._number(out, position)
        self._number(out, level)
        return 0

    def _byte(self, out: bytearray, byte: int) -> int:
        out[self._at] = byte
        self._at += 1
        return 0

    def _all(self, out: bytearray, data: bytes) -> int:
        size = len(data)
        copy(out, self._at, pointer(data), 0, size)
        self._at += size
        return 0

    def _big(self, out: bytearray, first: int, value: int, size: int) -> int:
        """Write a byte, and a number of so many bytes, the highest first."""
        at = self._at
        out[at] = first
        if size == 8:
            put_high64(out, at + 1, value)
        elif size == 4:
            put_high32(out, at + 1, value)
        else:
            if size == 2:
                out[at + 1] = value >> 8 & 255
            out[at + size] = value & 255
        self._at = at + 1 + size
        return 0

    def _number(self, out: bytearray, value: int) -> int:
        if value >= 0:
            if value < 128:
                self._byte(out, value)
            elif value < 256:
                self._big(out, 0xCC, value, 1)
            elif value < 65_536:
                self._big(out, 0xCD, value, 2)
            elif value >> 32 == 0:
                self._big(out, 0xCE, value, 4)
            else:
                self._big(out, 0xCF, value, 8)
        elif value >= -32:
            self._byte(out, value & 255)
        else:
            self._big(out, 0xD3, value, 8)
        return 0

    def _text(self, out: bytearray, data: bytes) -> int:
        size = len(data)
        if size < 32:
            self._byte(out, 0xA0 | size)
        elif size < 256:
            self._big(out, 0xD9, size, 1)
        else:
            self._big(out, 0xDA, size, 2)
        return self._all(out, data)

    def _value(self, out: bytearray, value: Any) -> int:
        if value is None:
            return self._byte(out, _NIL)
        data: bytes = value
        self._size(out, len(data))
        return self._all(out, data)

    def _size(self, out: bytearray, size: int) -> int:
        """Write how many bytes follow."""
        if size < 256:
            self._big(out, 0xC4, size, 1)
        elif size < 65_536:
            self._big(out, 0xC5, size, 2)
        else:
            self._big(out, 0xC6, size, 4)
        return 0
