"""A request that is not done, with the reason that the caller gets."""

from everlog.base import EverlogError
from everlog.streams.replies import Failure
from everlog.streams.values import ErrorCode


class Refused(EverlogError):
    """A request can't be done; nothing was changed."""

    def __init__(self, code: ErrorCode, message: str, *, hint: str = "", revision: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.revision = revision

    def failure(self, epoch: int) -> Failure:
        """Return what the caller gets."""
        return Failure(self.code, self.message, self.hint, epoch, "", self.revision)


def too_large(size: int, most: int) -> Refused:
    """Return the refusal of a message that is too large."""
    message = f"the message has {size} bytes, more than {most}"
    return Refused(ErrorCode.TOO_LARGE, message, hint="send less, or raise the limit")
