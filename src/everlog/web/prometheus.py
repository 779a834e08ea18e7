"""The broker's numbers as Prometheus metrics, all of them listed in `docs/reference/metrics.md`."""

from collections.abc import Iterator, Sequence
from dataclasses import fields

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from everlog import __version__, _kernels
from everlog.broker import Metrics, Numbers, Reports

CONTENT_TYPE = CONTENT_TYPE_LATEST

# What each counter of `Metrics` means; those of ended sessions are part of a sum below.
COUNTERS = {
    "connects": "Clients accepted.",
    "connects_refused": "CONNECTs refused.",
    "connects_limited": "Connections refused because of limits.connections or limits.connects_per_second.",
    "sessions_refused": "CONNECTs refused because of limits.sessions or limits.sessions_bytes.",
    "sessions_expired": "Sessions that ended because their client was away for longer than their expiry.",
    "disconnects": "Connections that ended, of clients accepted or not.",
    "vanished": "Clients gone without a DISCONNECT.",
    "protocol_errors": "Connections ended because the peer broke the protocol or a limit.",
    "auth_failures": "CONNECTs that failed to authenticate.",
    "logins_refused": "CONNECTs refused because too many passwords waited for their check (limits.logins_waiting).",
    "expelled": "Clients closed by a reload, since their user or the authority of their certificate is gone.",
    "takeovers": "Connections ended because their client id connected again.",
    "keep_alive_timeouts": "Clients silent for longer than their keep alive.",
    "connect_timeouts": "Peers that sent no CONNECT within limits.connect_timeout_s.",
    "tls_failures": "TLS handshakes that failed.",
    "duplicates": "QoS 2 messages that came again and were taken only once.",
    "refused": "Messages refused: the ACL, or a topic of the broker's own.",
    "withheld": "Messages not sent, since the rules do not allow them to their client any more.",
    "retained_refused": "Messages not retained because of limits.retained_messages or limits.retained_bytes.",
    "not_kept": "Messages refused because the disk is full (log.reserve_bytes) or fails.",
    "log_troubles": "Times that a shard could not be written for a while.",
    "subscribes": "Subscriptions granted.",
    "subscribes_refused": "Subscriptions refused: the ACL or a limit.",
    "replays": "Subscriptions that began in the past.",
    "over_quota": "Clients too slow for their QoS 1 and 2 messages (limits.queue_bytes, limits.spill_bytes).",
    "over_copies": "Clients cut off because unacknowledged messages took too much (limits.copies_bytes).",
    "held_back": "Times that reading from a client stopped (limits.inflight_bytes, limits.unwritten_bytes).",
    "unread_answers": "Times that reading stopped because a client does not read its answers (limits.output_bytes).",
    "unfinished": "Clients cut off because incomplete packets took too much (limits.unfinished_bytes).",
    "wills": "Wills published.",
    "table_resets": "Times that all topic names were forgotten because of limits.topics.",
}
_SUMMED = {"sent_to_ended", "dropped_of_ended", "expired_of_ended"}


class BrokerCollector(Collector):
    """The broker's `numbers` as metrics; they are set just before, since taking them needs several turns."""

    def __init__(self, *, names_clients: bool) -> None:
        self.numbers = Numbers()
        self._names_clients = names_clients

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the broker."""
        build = GaugeMetricFamily("everlog_build_info", "Version and kernels; always 1.", labels=["version", "kernels"])
        build.add_metric([__version__, _kernels.describe()], 1)
        yield build
        yield _gauge("uptime_seconds", "Seconds since the start.", self.numbers.uptime_s)
        yield _gauge(
            "clock_doubted", "1 while the wall clock has jumped and nothing expires.", self.numbers.clock_doubted
        )
        yield from self._clients()
        yield from self._messages()
        yield from self._memory()
        yield from self._lag()
        yield from self._groups()
        yield from self._log()
        yield from self._retention()
        yield from self._counters()

    def _clients(self) -> Iterator[Metric]:
        now, counted = self.numbers, self.numbers.survey
        yield _gauge("connections", "Clients connected.", now.connected)
        yield _gauge("connections_pending", "Peers that have sent no CONNECT yet.", now.pending)
        yield _gauge("sessions", "Sessions, connected or not.", now.sessions)
        yield _gauge("sessions_durable", "Sessions that outlive their connection.", counted.durable)
        yield _gauge("subscriptions", "Subscriptions of all sessions.", counted.subscriptions)
        yield _gauge("subscriptions_live", "Subscriptions of connected clients.", now.live_subscriptions)
        yield _gauge("retained_messages", "Retained messages.", now.retained)
        yield _gauge("retained_bytes", "Memory of retained messages.", now.retained_bytes)
        yield _gauge("retained_damaged", "Retained messages set aside as damaged.", now.retained_damaged)
        yield _gauge("topics", "Topic names known (limits.topics).", now.topics)

    def _messages(self) -> Iterator[Metric]:
        now, counted = self.numbers, self.numbers.survey
        yield _counter("messages_received", "Messages published by clients.", now.received)
        yield _counter("messages_kept", "Messages written to the log.", now.kept)
        yield _counter("messages_sent", "Messages sent to clients.", counted.sent)
        yield _counter("messages_dropped", "Messages dropped for slow clients (limits.queue_bytes).", counted.dropped)
        yield _counter("messages_expired", "Messages that expired before they were sent.", counted.expired)
        yield _counter("messages_lost", "Offsets asked for that were no longer in the log.", now.lost)
        yield _counter("catchup_read_seconds", "CPU of reading the log for sessions that are behind.", now.read_s)
        yield _counter("received_bytes", "Bytes of MQTT packets received.", now.bytes_in)
        yield _counter("sent_bytes", "Bytes of MQTT packets sent.", now.bytes_out)
        yield _gauge("inflight_messages", "Messages sent and not acknowledged.", counted.inflight)
        yield _gauge("queued_bytes", "Messages that wait in memory for slow clients.", counted.queued_bytes)
        yield _counter("spills", "Times that a slow client or group went on from the log.", now.spills)
        yield _gauge("spilled", "Slow clients and groups for which the log keeps messages.", now.spilled)
        yield _gauge("spilled_bytes", "Size of the log that they need (limits.spill_bytes).", now.spilled_bytes)
        yield _gauge("held_bytes", "Answers that wait for a commit (limits.inflight_bytes).", now.held_bytes)

    def _memory(self) -> Iterator[Metric]:
        now = self.numbers
        yield _gauge("copies_bytes", "Messages not acknowledged and in no log (limits.copies_bytes).", now.copies_bytes)
        yield _gauge("audiences_bytes", "Who gets which topic (limits.audiences_bytes).", now.audiences_bytes)
        yield _gauge("sessions_bytes", "Filters and wills of all sessions (limits.sessions_bytes).", now.sessions_bytes)
        yield _gauge("cold_bytes", "Read from the cold tier and not yet sent (limits.cold_bytes).", now.cold_bytes)
        yield _counter("cold_waits", "Times that a replay waited for room for that.", now.cold_waits)
        yield _gauge("groups_bytes", "Durable groups and what they deal (limits.groups_bytes).", now.groups_bytes)
        yield _counter("groups_shortened", "Seconds in which groups dealt less at that limit.", now.groups_shortened)
        yield _counter("audience_resets", "Times that this was forgotten at its limit.", now.audience_resets)

    def _lag(self) -> Iterator[Metric]:
        counted = self.numbers.survey
        yield _gauge("sessions_behind", "Sessions that have messages of the log before them.", counted.behind)
        yield _gauge(
            "session_lag_max_messages",
            "The largest lag of a session: at most so many messages wait for it.",
            counted.max_lag,
        )
        if not self._names_clients:
            return
        most = GaugeMetricFamily(
            "everlog_session_lag_messages",
            "The lag of the sessions most behind: at most so many messages wait for each.",
            labels=["client_id"],
        )
        for lag, client_id in counted.most_behind:
            most.add_metric([client_id], lag)
        yield most

    def _groups(self) -> Iterator[Metric]:
        now = self.numbers
        yield _gauge("groups", "Shared groups.", now.groups)
        yield _gauge("groups_durable", "Shared groups that have a place of their own in the log.", now.durable_groups)
        yield _counter("group_redelivered", "Messages of groups dealt to a member again.", now.group_redelivered)
        yield _counter("group_ack_timeouts", "Messages taken from a member (groups.ack_timeout).", now.group_timeouts)
        yield _counter(
            "group_lost", "Offsets that groups asked for and that were no longer in the log.", now.group_lost
        )
        for name, text, attribute in (
            ("group_lag_messages", "Messages not done, and offsets not looked at.", "lag"),
            ("group_inflight_messages", "Messages that members have and have not acknowledged.", "inflight"),
            ("group_members", "Members connected.", "members"),
        ):
            family = GaugeMetricFamily(f"everlog_{name}", text, labels=["group", "filter"])
            for one in now.largest_groups:
                family.add_metric([one.name, one.filter], getattr(one, attribute))
            yield family

    def _log(self) -> Iterator[Metric]:
        for name, text, attribute in (
            ("start", "First offset that is retained.", "start"),
            ("committed", "Offset after the last committed record.", "committed"),
            ("end", "Offset after the last record.", "end"),
            ("bytes", "Size of the segments.", "segment_bytes"),
            ("segments", "Number of segments.", "segments"),
            ("pending_bytes", "Appended and not yet written.", "pending_bytes"),
            ("block_bytes", "Memory of the blocks that large batches are made in.", "block_bytes"),
            ("damaged", "Places found damaged and fenced off.", "damaged"),
        ):
            family = GaugeMetricFamily(f"everlog_log_{name}", text, labels=["shard"])
            for shard in self.numbers.shards:
                family.add_metric([str(shard.shard)], getattr(shard, attribute))
            yield family
        for name, text, attribute in (
            ("commits", "Commits.", "commits"),
            ("commit_seconds", "Time that commits spent writing and syncing.", "write_s"),
        ):
            counter = CounterMetricFamily(f"everlog_log_{name}", text, labels=["shard"])
            for shard in self.numbers.shards:
                counter.add_metric([str(shard.shard)], getattr(shard, attribute))
            yield counter
        failed = GaugeMetricFamily("everlog_log_failed", "1 when the shard can't be written.", labels=["shard"])
        for number, has_failed in enumerate(self.numbers.failed):
            failed.add_metric([str(number)], has_failed)
        yield failed
        now = self.numbers
        yield _gauge("disk_free_bytes", "Free space of the data directory's disk.", now.disk_free_bytes)
        yield _gauge("disk_reserve_bytes", "Free space at which no more messages are kept.", now.disk_reserve_bytes)
        yield _gauge("disk_full", "1 when no messages are kept because of that.", now.disk_full)

    def _retention(self) -> Iterator[Metric]:
        state = self.numbers.retention
        yield _counter("retention_lost", "Messages deleted before a session or a group had read them.", state.lost)
        yield _counter("retention_losers", "Times that a session or a group lost messages that way.", state.losers)
        yield _gauge("retention_next_readers", "Sessions and groups that lose next.", state.next_readers)
        left_s = GaugeMetricFamily("everlog_retention_next_seconds", "Seconds until what goes next is too old.")
        if self.numbers.next_loss_s is not None:
            left_s.add_metric([], self.numbers.next_loss_s)
        yield left_s
        yield _counter("retention_thinned", "Messages of short-lived topics emptied in segments.", state.thinned)
        yield _counter("retention_thinned_bytes", "Bytes that this freed.", state.thinned_bytes)
        yield _gauge("retention_held_bytes", "Bytes due to be deleted once the table has them.", state.held_bytes)

    def _counters(self) -> Iterator[Metric]:
        for field in fields(Metrics):
            if field.name not in _SUMMED:
                text = COUNTERS.get(field.name, field.name.replace("_", " "))
                yield _counter(field.name, text, getattr(self.numbers.counters, field.name))


class Exposition:
    """The text that Prometheus reads, from a registry of its own; client ids are in it only if it `names_clients`."""

    def __init__(self, reports: Reports, *, names_clients: bool = False, more: Sequence[Collector] = ()) -> None:
        self._reports = reports
        self._collector = BrokerCollector(names_clients=names_clients)
        self._registry = CollectorRegistry()
        for collector in (self._collector, *more):
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)

    async def text(self) -> bytes:
        """Return all metrics as they are now."""
        self._collector.numbers = await self._reports.take()
        return generate_latest(self._registry)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"everlog_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"everlog_{name}", text, value=value)
