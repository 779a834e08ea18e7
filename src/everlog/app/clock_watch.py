"""The watch over the wall clock: compares the clocks every second, tells of a jump once, and keeps `clock.json`.

The file carries what is believed of the clock from one process to the next on this boot, and a doubt over a reboot
too. It is also how an operator settles the matter: `everlog clock DATA_DIR --accept` writes that the clock is believed.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from logging import ERROR, WARNING
from pathlib import Path

import msgspec

from everlog.base import StorageError
from everlog.broker import Belief, ExpiryClock, event
from everlog.store import read_record, write_record

FILE_NAME = "clock.json"
VERSION = 1
EVERY_S = 1.0
_MOVED_US = 10_000_000  # small steps of the clock that add up to this are written down
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ACCEPT = "everlog clock {} --accept"
_log = logging.getLogger("everlog.clock")


class ClockRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the file."""

    boot: str  # which boot of the system `offset_us` is of
    offset_us: int | None = None
    doubted_us: int = 0
    was_ahead: bool = False
    version: int = VERSION

    def belief(self, boot: str) -> Belief:
        """Return what to believe on a boot of the system: of another than the record's only that the clock is ahead."""
        if self.boot and self.boot == boot:
            return Belief(self.offset_us, self.doubted_us, self.was_ahead)
        return Belief(None, self.doubted_us, True) if self.doubted_us and self.was_ahead else Belief()


def boot_id() -> str:
    """Return what tells this boot of the system from others; empty if nothing does."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def wall_us() -> int:
    """Return the time of the wall clock."""
    return time.time_ns() // 1000


def boot_us() -> int:
    """Return the time since boot, with the time that the machine was suspended where the system counts that."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1000


def read_clock_record(data: str) -> ClockRecord | None:
    """Return the contents of the file, or None if there is none; refuse an unknown version."""
    return read_record(data, FILE_NAME, ClockRecord, (VERSION,), "remove it, if the time of this machine is right")


def write_clock_record(data: str, record: ClockRecord) -> None:
    """Replace the file whole and durably."""
    write_record(data, FILE_NAME, record)


class ClockWatch:
    """The clock of one broker, and its file."""

    def __init__(
        self,
        data: str,
        wall_us: Callable[[], int] = wall_us,
        boot_us: Callable[[], int] = boot_us,
        boot: str | None = None,
    ) -> None:
        self._data = data
        self._boot = boot_id() if boot is None else boot
        record = read_clock_record(data)
        self.clock = ExpiryClock(wall_us, boot_us, None if record is None else record.belief(self._boot))
        self._is_told = False  # of the doubt that there is
        self._written = record
        self._fails = False
        self._tell()
        self._write(self._record())

    async def run(self, every_s: float = EVERY_S) -> None:
        """Watch, again and again."""
        while True:
            await asyncio.sleep(every_s)
            await self.once()

    async def once(self) -> None:
        """Compare the clocks, see whether an operator has settled the matter, tell and write down what is new."""
        clock = self.clock
        clock.look()
        if not clock.is_believed and self._written is not None and self._written.doubted_us:
            record = await asyncio.to_thread(_read_or_none, self._data)
            if record is not None and not record.doubted_us:  # not what was written here
                clock.settle()
        self._tell()
        record = self._record()
        if self._is_news(record):
            await asyncio.to_thread(self._write, record)

    def _record(self) -> ClockRecord:
        belief = self.clock.belief
        return ClockRecord(
            boot=self._boot, offset_us=belief.offset_us, doubted_us=belief.doubted_us, was_ahead=belief.was_ahead
        )

    def _is_news(self, record: ClockRecord) -> bool:
        old = self._written
        if old is None or (old.boot, old.doubted_us) != (record.boot, record.doubted_us):
            return True
        if old.offset_us is None or record.offset_us is None:
            return old.offset_us is not record.offset_us
        return abs(old.offset_us - record.offset_us) >= _MOVED_US

    def _tell(self) -> None:
        clock = self.clock
        was_told, self._is_told = self._is_told, not clock.is_believed
        if was_told and clock.is_believed:
            event(_log, "clock_settled", WARNING)
        elif not was_told and not clock.is_believed:
            hint = f"nothing expires until the clock is back, or you say that it is right: {ACCEPT.format(self._data)}"
            event(_log, "clock_jumped", ERROR, ahead_s=clock.apart_us // 1_000_000 or None, reason=hint)

    def _write(self, record: ClockRecord) -> None:
        try:
            write_clock_record(self._data, record)
        except StorageError as error:  # tried again at the next look
            if not self._fails:
                event(_log, "clock_unwritten", WARNING, reason=error)
            self._fails = True
        else:
            self._fails = False
            self._written = record


class ClockReader:
    """The same clock in a process beside the broker: it doubts by itself, and believes again when the file does."""

    def __init__(
        self,
        data: str,
        wall_us: Callable[[], int] = wall_us,
        boot_us: Callable[[], int] = boot_us,
        boot: str | None = None,
    ) -> None:
        self._data = data
        record = read_clock_record(data)
        belief = None if record is None else record.belief(boot_id() if boot is None else boot)
        self.clock = ExpiryClock(wall_us, boot_us, belief)
        self._knows_doubt = record is not None and bool(record.doubted_us)  # the file has told of it

    async def run(self, every_s: float = EVERY_S) -> None:
        """Look, again and again."""
        while True:
            await asyncio.sleep(every_s)
            await self.once()

    async def once(self) -> None:
        """Compare the clocks, and see whether an operator has settled a doubt that the broker had written down."""
        self.clock.look()
        if self.clock.is_believed:
            self._knows_doubt = False
            return
        record = await asyncio.to_thread(_read_or_none, self._data)
        if record is None:
            return
        if record.doubted_us:
            self._knows_doubt = True
        elif self._knows_doubt:
            self.clock.settle()


def _read_or_none(data: str) -> ClockRecord | None:
    """Return the contents of the file, or None if they can't be read, and so settle nothing."""
    try:
        return read_clock_record(data)
    except (StorageError, OSError):
        return None
