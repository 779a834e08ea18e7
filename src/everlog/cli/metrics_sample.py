"""What a broker's `/metrics` says, and how fast it changes between two looks."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from everlog.base import Unavailable

PREFIX = "everlog_"
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """The broker's metrics at a time, by name without `everlog_`."""

    time: float
    values: Mapping[str, list[tuple[Labels, float]]]

    def value(self, name: str) -> float:
        """Return the one value of a metric; 0 when there is none."""
        return next((value for _, value in self.values.get(name, ())), 0.0)

    def total(self, name: str) -> float:
        """Return the sum of a metric over all labels."""
        return sum(value for _, value in self.values.get(name, ()))

    def labels(self, name: str) -> Labels:
        """Return the labels of the one value of a metric."""
        return next((labels for labels, _ in self.values.get(name, ())), {})

    def series(self, name: str, label: str) -> list[tuple[str, float]]:
        """Return every value of a metric with one of its labels."""
        return [(labels.get(label, ""), value) for labels, value in self.values.get(name, ())]


@dataclass(frozen=True, slots=True)
class Rates:
    """Two samples, the first before the second."""

    before: Sample
    now: Sample

    def per_second(self, name: str) -> float:
        """Return how fast a counter grew; 0 when the broker was started anew in between."""
        elapsed_s = self.now.time - self.before.time
        if elapsed_s <= 0:
            return 0.0
        return max(0.0, self.now.value(name) - self.before.value(name)) / elapsed_s


def parse_sample(text: str, at: float) -> Sample:
    """Parse the broker's metrics from Prometheus text."""
    values: dict[str, list[tuple[Labels, float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(PREFIX):
                    values.setdefault(sample.name.removeprefix(PREFIX), []).append((sample.labels, sample.value))
    except ValueError as error:
        raise Unavailable(f"the answer is not metrics: {error}", hint="is this the broker's HTTP port?") from None
    return Sample(at, values)
