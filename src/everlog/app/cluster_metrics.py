"""The numbers of a broker of a cluster as Prometheus metrics, all of them listed in `docs/reference/metrics.md`."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from everlog.cluster import ClusterNumbers

_SHARD_GAUGES = (
    ("shard_owned", "1 if this broker owns the shard.", "is_owned"),
    ("shard_has_owner", "1 if a living broker owns the shard.", "has_owner"),
    ("shard_epoch", "The epoch of the shard's last owner.", "epoch"),
    ("tail_rows", "Rows of an owned shard in the database.", "tail_rows"),
    ("tail_bytes", "Their bytes (cluster.tail_bytes).", "tail_bytes"),
    ("bucket_lag_messages", "Committed messages of an owned shard that are not in the bucket.", "bucket_lag"),
    ("bucket_failed", "1 while segments of an owned shard do not reach the bucket.", "bucket_fails"),
    ("commit_waits_seconds", "For how long a commit of an owned shard has waited for the database.", "waits_s"),
    ("commit_in_doubt", "1 while a commit was not confirmed and is being settled.", "is_in_doubt"),
    ("followed_lag_messages", "Committed messages of a followed shard that this broker lacks.", "followed_lag"),
    ("unconfirmed_messages", "Messages of this broker that the shard's owner has not confirmed.", "unconfirmed"),
    ("unconfirmed_bytes", "Their bytes.", "unconfirmed_bytes"),
)


class ClusterCollector(Collector):
    """What a call counts, as metrics."""

    def __init__(self, count: Callable[[], ClusterNumbers]) -> None:
        self._count = count

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the cluster."""
        now = self._count()
        name = GaugeMetricFamily(
            "everlog_cluster_broker_info", "What this broker is called; always 1.", labels=["name"]
        )
        name.add_metric([now.name], 1)
        yield name
        yield _gauge(
            "incarnation", "The number of this incarnation; it grows when the broker joins again.", now.incarnation
        )
        yield _gauge("draining", "1 while this broker hands over what it has.", now.is_draining)
        yield _gauge("format", "The format that is written: all living brokers understand it.", now.format)
        yield _gauge("beat_age_seconds", "Seconds since the last beat that the database has stored.", now.beat_age_s)
        yield _gauge("brokers", "Brokers that live, with this one.", now.brokers)
        yield _gauge("links_up", "Other brokers that there is a connection with.", now.links_up)
        yield _gauge("links_down", "Other brokers that there is none with.", now.links_down)
        yield _gauge("standbys", "Standbys that the last commit of this broker has reached.", now.standbys)
        yield _gauge("standbys_wanted", "Standbys that it must reach (cluster.min_standbys).", now.min_standbys)
        yield _gauge("shards_owned", "Shards that this broker owns.", sum(one.is_owned for one in now.shards))
        yield _gauge(
            "shards_unowned", "Shards that no living broker owns.", sum(not one.has_owner for one in now.shards)
        )
        yield _gauge("tail_limit_bytes", "What each shard may have in the database.", now.tail_limit_bytes)
        fullest = max((one.tail_bytes for one in now.shards), default=0)
        yield _gauge(
            "tail_fill_ratio", "How full the fullest tail of an owned shard is.", fullest / now.tail_limit_bytes
        )
        yield _gauge("sessions_held", "Client ids that this broker holds.", now.sessions_held)
        yield _gauge("follow_failed", "1 while shards of others can't be followed.", now.follow_fails)
        for name_of, text, attribute in _SHARD_GAUGES:
            family = GaugeMetricFamily(f"everlog_cluster_{name_of}", text, labels=["shard"])
            for one in now.shards:
                family.add_metric([str(one.shard)], float(getattr(one, attribute)))
            yield family
        doubts = CounterMetricFamily(
            "everlog_cluster_commit_doubts", "Commits that the database did not confirm at once.", labels=["shard"]
        )
        for one in now.shards:
            doubts.add_metric([str(one.shard)], one.doubts)
        yield doubts


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"everlog_cluster_{name}", text, value=float(value))
