"""Messages as NATS has them on the wire, many in one call."""

import cython

from everlog.bus.nats_subjects import to_nats

if not cython.compiled:
    from everlog.base.memory import copy, pointer, resize
    from everlog.bus.delivery import Delivery

_SUBJECTS = 100_000  # whose form for NATS is remembered; beyond it all are forgotten
_PUB = b"PUB "
_MOST_DIGITS = 20


class NatsOutput:
    """Renders messages for one connection."""

    def __init__(self) -> None:
        self._forms: dict[str, bytes] = {}
        self._room = bytearray(1 << 16)

    def form(self, subject: str) -> bytes:
        """Return a subject in the form that NATS has for it."""
        form = self._forms.get(subject)
        if form is None:
            if len(self._forms) >= _SUBJECTS:
                self._forms.clear()
            form = self._forms[subject] = to_nats(subject)
        return form

    def render(self, messages: "list[Delivery]") -> bytes:
        """Return messages, without subjects to reply to, as bytes to be sent."""
        at = 0
        for message in messages:
            form = self.form(message.subject)
            size = len(message.payload)
            needed = at + len(form) + size + _MOST_DIGITS + 10
            if needed > len(self._room):
                resize(self._room, 2 * needed)
            out = pointer(self._room)
            copy(out, at, pointer(_PUB), 0, 4)
            at += 4
            copy(out, at, pointer(form), 0, len(form))
            at += len(form)
            out[at] = 32
            at = self._digits(out, at + 1, size)
            out[at] = 13
            out[at + 1] = 10
            copy(out, at + 2, pointer(message.payload), 0, size)
            at += 2 + size
            out[at] = 13
            out[at + 1] = 10
            at += 2
        out = pointer(self._room)
        return bytes(out[0:at])

    def _digits(self, out: bytearray, at: int, value: int) -> int:
        """Write a number, and return where it ends."""
        count = 1
        rest = value // 10
        while rest:
            rest //= 10
            count += 1
        k = at + count - 1
        while k >= at:
            out[k] = 48 + value % 10
            value //= 10
            k -= 1
        return at + count
