"""What a request may fail with, a class for each cause that a program may want to tell apart."""

from everlog.base import EverlogError, UsageError
from everlog.streams import ErrorCode, Failure


class PersistError(EverlogError):
    """A request that was not done; `code` says why, and `revision` what is there instead where that matters."""

    def __init__(self, message: str, *, hint: str = "", code: ErrorCode, revision: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.revision = revision


class BadRequest(PersistError):
    """It can't be understood, or asks for something that can't be; the message says which part of it."""


class NotFound(PersistError):
    """There is no such stream, seq, key or queue."""


class WrongKind(PersistError):
    """A stream's operation on a key-value store, or the other way round."""


class Exists(PersistError):
    """The key has a value already, or the seq a message; `revision` is the current one."""


class WrongRevision(PersistError):
    """Somebody else was first; `revision` is the current one."""


class Full(PersistError):
    """The stream is full and takes no new messages."""


class TooLarge(PersistError):
    """The message is larger than allowed."""


class RateExceeded(PersistError):
    """More writes a second than the stream's limit."""


class StaleRetry(PersistError):
    """A message id so old that nobody knows any more whether it was written."""


class Denied(PersistError):
    """It is not allowed."""


class TimedOut(PersistError):
    """No answer in time: a write may have been done or not. The same message id can be used again."""


class NotServed(PersistError):
    """No server could do it now."""


class ServerFailed(PersistError):
    """The server's disk or bucket failed."""


_CLASSES: dict[ErrorCode, type[PersistError]] = {
    ErrorCode.BAD_REQUEST: BadRequest,
    ErrorCode.NOT_FOUND: NotFound,
    ErrorCode.WRONG_KIND: WrongKind,
    ErrorCode.EXISTS: Exists,
    ErrorCode.WRONG_REVISION: WrongRevision,
    ErrorCode.FULL: Full,
    ErrorCode.TOO_LARGE: TooLarge,
    ErrorCode.RATE: RateExceeded,
    ErrorCode.STALE_RETRY: StaleRetry,
    ErrorCode.DENIED: Denied,
    ErrorCode.TIMEOUT: TimedOut,
    ErrorCode.NOT_OWNER: NotServed,
    ErrorCode.BEHIND: NotServed,
    ErrorCode.FENCED: NotServed,
    ErrorCode.BUSY: NotServed,
    ErrorCode.UNAVAILABLE: NotServed,
    ErrorCode.STORAGE: ServerFailed,
}


def error_of(failure: Failure) -> PersistError:
    """Return the error that a failure is."""
    kind = _CLASSES.get(failure.code, PersistError)
    return kind(failure.message, hint=failure.hint, code=failure.code, revision=failure.revision)


def timed_out(what: str, seconds: float) -> TimedOut:
    """Return the error for an answer that never came."""
    return TimedOut(
        f"{what}: no answer for {seconds:g} s",
        hint="is a persist server running (everlog persist status), and may this user reach it?",
        code=ErrorCode.TIMEOUT,
    )


def closed_meanwhile(what: str) -> TimedOut:
    """Return the error for an answer that the client did not wait for."""
    return TimedOut(
        f"{what}: the client was closed before the answer came",
        hint="a write may have been done or not: close the client when all that it does is done",
        code=ErrorCode.TIMEOUT,
    )


def not_open() -> UsageError:
    """Return the error for a client that is used before or after its time."""
    return UsageError("the client is not open", hint="use it within its `async with` (or `with`)")
