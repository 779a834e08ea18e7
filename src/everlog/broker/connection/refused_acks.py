"""Acks for a run of which some messages were refused: the slow way, a packet at a time."""

from everlog.base import DROPPED, QOS_BITS, QOS_SHIFT, PublishRun
from everlog.broker.connection.output import Output
from everlog.mqtt import NO_PROPERTIES, Puback, Pubrec, Reason

_WORDS = {
    Reason.NOT_AUTHORIZED: "not allowed to publish to this topic",
    Reason.QUOTA_EXCEEDED: "no more can be retained",
}


def refuse(acks: bytes, run: PublishRun, refused: dict[int, int], output: Output) -> tuple[bytes, int]:
    """Return the acks with a reason code for dropped messages to `refused` topics (topic id: reason), and how many
    QoS 2 exchanges end with that, since no PUBREL follows a PUBREC with an error.

    [MQTT-3.3.5-2] MQTT 3.1.1 has no negative PUBACK: the ack is a plain one, and the message goes nowhere.
    """
    if output.version != 5:
        return acks, 0
    columns = run.columns
    topics = memoryview(columns.topics).cast("I")
    ids = memoryview(columns.packet_ids).cast("H")
    words = {reason: output.explain(_WORDS.get(Reason(reason), "")) for reason in set(refused.values())}
    out = []
    ended = 0
    for i in range(run.start, run.stop):
        qos = (columns.flags[i] & QOS_BITS) >> QOS_SHIFT
        if qos:
            reason = Reason(refused.get(topics[i], 0) if columns.flags[i] & DROPPED else 0)
            ended += qos == 2 and reason.is_error
            kind = Puback if qos == 1 else Pubrec
            out.append(output.encoded(kind(ids[i], reason, words.get(reason, NO_PROPERTIES))) or b"")
    return b"".join(out), ended
