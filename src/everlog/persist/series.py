"""A series of replies to one request: sent as far as the caller's credit goes, and again from where it missed one."""

import logging
from collections.abc import Callable, Iterator

from everlog.base import EverlogError
from everlog.bus import MAX_WINDOW
from everlog.streams import Answer, ErrorCode, Failure

_STEPS = 4  # answers that are made in one turn of the loop; then others have theirs
_log = logging.getLogger("everlog.persist")


class Series:
    """The sender's end. Answers that the caller has not confirmed are kept: at most its window."""

    def __init__(
        self,
        answers: Iterator[Answer],
        window: int,
        send: Callable[[int, Answer], None],
        soon: Callable[[Callable[[], None]], object],
        now: float,
        shard: int = 0,
    ) -> None:
        self.shard = shard
        self._answers = answers
        self._send = send
        self._soon = soon
        self._kept: dict[int, Answer] = {}
        self._made = 0
        self._upto = min(window, MAX_WINDOW)
        self._is_pumping = False
        self._is_made = False  # the last answer is made
        self.is_over = False  # and the caller has it, or is gone
        self.touched = now

    def credit(self, next: int, window: int, again: bool, now: float) -> None:
        """Take the caller's word that it has everything before `next`, and how many more may come."""
        self.touched = now
        for number in [number for number in self._kept if number < next]:
            del self._kept[number]
        if self._is_made and not self._kept:
            self.is_over = True
            return
        self._upto = max(self._upto, next + min(window, MAX_WINDOW))
        if again:
            for number, answer in list(self._kept.items()):
                self._send(number, answer)
        self.pump()

    def pump(self) -> None:
        """Make and send answers, a few in each turn of the loop."""
        if not self._is_pumping:
            self._is_pumping = True
            self._step()

    def close(self) -> None:
        """Send no more."""
        self.is_over = True
        self._let_go()

    def _let_go(self) -> None:
        close = getattr(self._answers, "close", None)
        if close is not None:
            close()

    def _step(self) -> None:
        self._is_pumping = False
        if self.is_over:
            return
        for _ in range(_STEPS):
            if self._is_made or self._made >= self._upto:
                return
            answer = self._next()
            if answer.is_last:
                self._is_made = True
                self._let_go()
            self._kept[self._made] = answer
            self._send(self._made, answer)
            self._made += 1
        self._is_pumping = True
        self._soon(self._step)

    def _next(self) -> Answer:
        try:
            return next(self._answers)
        except StopIteration:
            return Failure(ErrorCode.STORAGE, "the series ended too early")
        except EverlogError as error:
            return Failure(ErrorCode.STORAGE, error.message, error.hint)
        except Exception:  # noqa: BLE001 - one request must not end the others
            _log.exception("a series of answers failed")
            return Failure(ErrorCode.STORAGE, "the server failed", "its log says why")
