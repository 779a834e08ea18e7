"""What came of a case."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case: `done` requests or deliveries, and the processor time of all that served them."""

    done: int
    seconds: float
    cpu_s: float
    load_cpu_s: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    refused: int = 0
    resident_mb: float = 0.0
    more: dict[str, float] = field(default_factory=dict)  # figures of this case alone

    @property
    def cpu_us(self) -> float:
        """Processor time of one."""
        return 1e6 * self.cpu_s / max(1, self.done)

    @property
    def rate(self) -> float:
        """How many a second."""
        return self.done / max(1e-9, self.seconds)

    def figure(self, name: str) -> float:
        """Return one of the figures by its name."""
        found: float = self.more[name] if name in self.more else getattr(self, name)
        return found
