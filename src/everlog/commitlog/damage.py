"""What can't be trusted, and where: damage is reported and fenced off, never deleted."""

from dataclasses import dataclass

from everlog.base import StorageError

VERIFY_HINT = "run: everlog verify DATA_DIR"
MISPLACED = "this file is another segment's or another shard's; put it back where it belongs, and the right one here"
MISSING = "this segment is missing; restore it from a backup"
GAP = "a segment before this one is missing or cut short; restore it from a backup"


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in a file that can't be trusted; offsets from `from_offset` to before `to_offset` are not readable."""

    path: str
    position: int
    what: str
    from_offset: int = 0
    to_offset: int = 0

    def __str__(self) -> str:
        lost = self.to_offset - self.from_offset
        offsets = f"; offsets {self.from_offset} to {self.to_offset - 1} are not readable" if lost else ""
        return f"{self.path} at byte {self.position}: {self.what}{offsets}"


class CorruptFile(StorageError):
    """The error that a file's bytes are not those that were written."""

    def __init__(self, path: str, position: int, what: str) -> None:
        super().__init__(f"{path} at byte {position}: {what}", hint=VERIFY_HINT)
        self.damage = Damage(path, position, what)


class DamageList:
    """The damages met so far, each once; beyond `LIMIT` they are only counted."""

    LIMIT = 10_000

    def __init__(self) -> None:
        self.total = 0
        self.rebuild: set[int] = set()  # base offsets of segments whose side file is to be made again
        self._reports: dict[tuple[str, int], Damage] = {}

    def add(self, damage: Damage) -> None:
        """Note a damage; of two at one place keep the one that loses more offsets."""
        key = (damage.path, damage.position)
        known = self._reports.get(key)
        if known is None:
            self.total += 1
        if known is None and len(self._reports) >= self.LIMIT:
            return
        if known is None or damage.to_offset - damage.from_offset > known.to_offset - known.from_offset:
            self._reports[key] = damage

    def note_gap(self, path: str, end: int, previous_end: int) -> None:
        """Note that a segment follows records up to `previous_end`, though those before it end at `end`."""
        for report in sorted(self.reports(), key=lambda report: report.from_offset):
            if report.from_offset <= end:
                end = max(end, report.to_offset)  # known to be damaged
        if end < previous_end:
            self.add(Damage(path, 0, GAP, end, previous_end))

    def reports(self) -> list[Damage]:
        """Return the damages in the order in which they were met."""
        return list(self._reports.values())
