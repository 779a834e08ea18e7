"""Retention of a cluster's history, and what is deleted after it: each broker does it for the shards that it owns.

A segment that is too old or too much is dropped from the list, behind the shard's fence: nobody looks for it any more.
Its object is deleted later, when no reader can be in it: after `pinned_s`, and not while a pin holds it. Then its row
goes.
Local copies follow what the list has. Single records are not thinned out: an object is never written again, so topics
with a shorter life need a cluster of their own or the lake table.

How old a segment is says the database's clock alone. If that jumps, nothing is dropped until `accept` is called.
"""

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from everlog.base import EverlogError, Fenced, StorageError
from everlog.cluster.cluster_log import ClusterLog
from everlog.cluster.database import ClusterDatabase
from everlog.cluster.log_reader import pin_folder
from everlog.cluster.uploads import RetentionLimits
from everlog.tiering import UNNAMED_S, Bucket, bucket_clock

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

SCRUB_S = 3600.0  # between two looks at all objects
JUMP_S = 60.0  # by which two clocks may drift apart until nothing goes by age
_PINNED = re.compile(r"pins/(\d+)/.+")


class ClusterRetention:
    """Keeps a cluster's history within its limits. `step` is called about once a minute, by a thread that may wait."""

    def __init__(
        self,
        log: ClusterLog,
        database: ClusterDatabase,
        bucket: Bucket,
        limits: RetentionLimits | None = None,
        keep_from: Callable[[], Sequence[int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._bucket = bucket
        self._limits = limits or RetentionLimits()
        self._keep_from = keep_from  # offsets that must stay, such as those of retained messages that no table has yet
        self._clock = clock
        self._connection = database.connect()
        self._scrubbed: float | None = None
        self._known: tuple[float, float] | None = None  # the database's time and this process's at one moment
        self.held_bytes = 0  # that would go, and stay because of `keep_from`
        self.trouble: EverlogError | None = None  # why the last step did not do all of it

    def step(self) -> None:
        """Drop and delete what is due in the shards that are owned here; what fails is tried again at the next step."""
        self.trouble = None
        try:
            now_s, starts = self._connection.call(_read)
            keep_from = None if self._keep_from is None else self._keep_from()
        except EverlogError as error:
            self.trouble = error
            return
        self._log.starts[:] = [starts.get(number, 0) for number in range(len(self._log.starts))]
        if self._has_jumped(now_s):
            self.trouble = StorageError(
                "the database's clock has jumped: nothing is dropped or deleted by age",
                hint="set it right, or restart the brokers one by one to go by what it says now",
            )
            return
        now = self._clock()
        scrubs = self._scrubbed is None or now - self._scrubbed >= SCRUB_S
        self.held_bytes = 0
        for shard in self._log.cluster_shards:
            if not shard.epoch:
                continue
            try:
                self.held_bytes += shard.retain(self._limits, None if keep_from is None else keep_from[shard.number])
                shard.clean(scrubs=scrubs)
                if shard.number == 0:
                    self._clean_pins(scrubs)
            except Fenced:
                continue  # its next owner does it
            except EverlogError as error:
                self.trouble = error
        if scrubs and self.trouble is None:
            self._scrubbed = now

    def accept(self) -> None:
        """Go by the database's clock from now on, however it has jumped."""
        self._known = None

    def _has_jumped(self, now_s: float) -> bool:
        own = self._clock()
        if self._known is None:
            self._known = (now_s, own)
        return abs((now_s - self._known[0]) - (own - self._known[1])) > JUMP_S

    def _clean_pins(self, scrubs: bool) -> None:
        """Remove pins that are over, with their objects, and if it `scrubs` objects whose pin is gone."""
        for pin in self._connection.call(_expired):
            for held in list(self._bucket.find(pin_folder(pin))):
                self._bucket.delete(held.name)
            self._connection.call(partial(_forget_pin, pin=pin))
        if not scrubs:
            return
        found = list(self._bucket.find("pins"))  # before the pins are looked at: a pin is stored before its objects
        holding = self._connection.call(_pins) if found else set()
        now_s = bucket_clock(self._bucket, "pins") if found else 0.0
        for one in found:
            named = _PINNED.fullmatch(one.name)
            if (named is None or int(named[1]) not in holding) and now_s - one.modified_s > UNNAMED_S:
                self._bucket.delete(one.name)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _read(cursor: "Cursor") -> tuple[float, dict[int, int]]:
    cursor.execute("select extract(epoch from clock_timestamp())::float8, shard, start from message_shards")
    rows = cursor.fetchall()
    if not rows:
        raise StorageError("there are no shards", hint="make the tables first")
    return rows[0][0], {shard: start for _, shard, start in rows}


def _expired(cursor: "Cursor") -> list[int]:
    cursor.execute("select number from message_pins where until < clock_timestamp()")
    return [number for (number,) in cursor.fetchall()]


def _forget_pin(cursor: "Cursor", pin: int) -> None:
    cursor.execute("delete from message_pins where number = %s and until < clock_timestamp()", (pin,))


def _pins(cursor: "Cursor") -> set[int]:
    cursor.execute("select number from message_pins")
    return {number for (number,) in cursor.fetchall()}
