"""What one client, and all together, may use. Every limit has a safe default and says what happens beyond it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a broker; `Reason` names are the MQTT 5 reason codes that a peer over the limit is told."""

    connections: int = 100_000  # more are refused: SERVER_BUSY, or closed unanswered when there are many
    connects_per_second: float = 5_000.0  # with a second's worth at once; more: CONNECTION_RATE_EXCEEDED, or closed
    connect_timeout_s: float = 10.0  # no CONNECT by then: closed
    logins_waiting: int = 1000  # for their passwords' check; beyond, the newest of the busiest address: SERVER_BUSY
    logins_bytes: int = 16 << 20  # of their CONNECTs; beyond, the same
    message_bytes: int = 16 << 20  # larger PUBLISH packets: PACKET_TOO_LARGE
    packet_bytes: int = 1 << 20  # larger packets of other kinds: PACKET_TOO_LARGE
    qos: int = 2  # the highest; messages and wills above it: QOS_NOT_SUPPORTED; subscriptions are granted it
    retain: bool = True  # may messages be retained; else those and wills that ask for it: RETAIN_NOT_SUPPORTED
    topic_bytes: int = 1024  # longer topic names and filters: TOPIC_NAME_INVALID, TOPIC_FILTER_INVALID
    topic_levels: int = 128  # deeper ones: the same
    topics: int = 1_000_000  # names known at once; beyond, all are learnt anew; beyond twice that: QUOTA_EXCEEDED
    topics_per_client: int = 200_000  # names that one connection may be the first to use: QUOTA_EXCEEDED
    topics_bytes: int = 64 << 20  # of the names known at once; beyond, as for `topics`
    topic_aliases: int = 64  # of one connection, each way; higher ones: TOPIC_ALIAS_INVALID
    subscriptions_per_client: int = 10_000  # more in a SUBSCRIBE: QUOTA_EXCEEDED
    client_id_bytes: int = 256  # longer ones: CLIENT_IDENTIFIER_NOT_VALID
    receive_maximum: int = 4096  # QoS 1 and 2 messages of a client not yet answered: RECEIVE_MAXIMUM_EXCEEDED
    inflight_messages: int = 2048  # sent to a client and not acknowledged; more wait
    inflight_bytes: int = (
        64 << 20  # answers held back until commit, over all clients; beyond, reading stops from those who wait for one
    )
    unwritten_bytes: int = (
        64 << 20  # received and not yet written to a shard's log; beyond, reading stops from those who publish to it
    )
    unfinished_bytes: int = (
        64 << 20
    )  # of incomplete packets, over all; beyond, who is stalled for longest: QUOTA_EXCEEDED
    output_bytes: int = 256 << 10  # unsent bytes of one client; beyond, it counts as slow and is sent nothing more
    queue_bytes: int = 4 << 20  # what waits for a slow client; beyond, QoS 0 is dropped; QoS 1 and 2 spill at a quarter
    spill_bytes: int = (
        1 << 30
    )  # of the log, for clients that spill; beyond, the slowest: QUOTA_EXCEEDED; 0: none spills
    copies_bytes: int = 64 << 20  # not acknowledged and in no log, over all; beyond, who has most: QUOTA_EXCEEDED
    audiences_bytes: int = 64 << 20  # of who gets which topic; beyond, all is forgotten and found anew
    retained_messages: int = 1_000_000  # more: QUOTA_EXCEEDED
    retained_bytes: int = 256 << 20  # more: QUOTA_EXCEEDED
    sessions_bytes: int = 512 << 20  # of the filters and wills of all sessions; more: QUOTA_EXCEEDED
    groups: int = 10_000  # durable shared groups; one more in a SUBSCRIBE: QUOTA_EXCEEDED
    groups_per_client: int = 1_000  # of them, those that one client is a member of; the same
    groups_bytes: int = 128 << 20  # of durable groups and what they deal; beyond, each deals a few at a time
    cold_bytes: int = 64 << 20  # read from the cold tier and not yet sent, 2 MiB a session; more wait their turn
    sessions: int = 1_000_000  # that are stored, and so outlive their connection; more: QUOTA_EXCEEDED
    session_expiry_s: int = 7 * 24 * 3600  # the longest; 3.1.1 sessions that are not clean get this
    absent_qos_0: bool = True  # durable sessions get QoS 0 messages of when they were away; else those are left out
    keep_alive_s: int = 0  # the longest that an MQTT 5 client may ask for; 0 leaves it to the client, as MQTT 3 does
    durable_wildcard: bool = False  # may `#`, `+/+` and the like keep what no setting keeps; else NOT_AUTHORIZED
