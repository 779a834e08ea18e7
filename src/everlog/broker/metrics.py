"""The broker's counters, as plain numbers for whoever shows them."""

from dataclasses import dataclass

from everlog.sessions import Counters


@dataclass(slots=True)
class Metrics:
    """Counters since the start."""

    connects: int = 0
    connects_refused: int = 0
    connects_limited: int = 0
    sessions_refused: int = 0  # CONNECTs that asked for one more stored session
    sessions_expired: int = 0  # their clients were away for too long
    disconnects: int = 0
    vanished: int = 0  # clients gone without a DISCONNECT from either side
    protocol_errors: int = 0
    auth_failures: int = 0
    logins_refused: int = 0  # passwords not checked, since too many waited
    expelled: int = 0  # clients closed by a reload: their user or their authority is gone
    takeovers: int = 0
    keep_alive_timeouts: int = 0
    connect_timeouts: int = 0
    tls_failures: int = 0  # handshakes that failed
    duplicates: int = 0  # QoS 2 messages that came again
    refused: int = 0  # messages that were not allowed
    withheld: int = 0  # messages that waited and that the rules do not allow their client any more
    retained_refused: int = 0
    not_kept: int = 0  # messages that were refused because the disk is full or fails
    log_troubles: int = 0  # times that a shard could not be written, until it could again
    subscribes: int = 0
    subscribes_refused: int = 0
    replays: int = 0  # subscriptions that began in the past
    over_copies: int = 0  # clients closed because unacknowledged messages in no log took too much memory
    over_quota: int = 0  # clients too slow for their QoS 1 and 2 messages
    held_back: int = 0  # times that reading stopped because too much was under way
    unread_answers: int = 0  # times that reading stopped because the client does not read its answers
    unfinished: int = 0  # clients closed because incomplete packets took too much memory
    wills: int = 0
    table_resets: int = 0
    sent_to_ended: int = 0  # messages to sessions that have ended since; other sessions have their own counts
    dropped_of_ended: int = 0
    expired_of_ended: int = 0

    def count_ended(self, counters: Counters) -> None:
        """Take in the counts of a session that ends or is put asleep."""
        self.sent_to_ended += counters.sent
        self.dropped_of_ended += counters.dropped
        self.expired_of_ended += counters.expired
