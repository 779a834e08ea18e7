"""Acks for a run of which some messages were refused: the slow way, a packet at a time."""

from typing import TypeAlias

from everlog.base import QOS_BITS, QOS_SHIFT, PublishRun
from everlog.broker.connection.output import Output
from everlog.mqtt import NO_PROPERTIES, Puback, Pubrec, Reason

Refusal: TypeAlias = tuple[Reason, str]  # and words for people
Refused: TypeAlias = dict[int, Refusal]  # by row of a run

NOT_ALLOWED: Refusal = (Reason.NOT_AUTHORIZED, "not allowed to publish to this topic")
NOT_RETAINED: Refusal = (Reason.QUOTA_EXCEEDED, "no more can be retained")
NOT_KEPT: Refusal = (Reason.QUOTA_EXCEEDED, "no more messages can be kept now: the disk is full or fails")


def refuse(acks: bytes, run: PublishRun, refused: Refused, output: Output) -> tuple[bytes, int]:
    """Return the acks with a reason code for the `refused` messages, and how many QoS 2 exchanges end with that,
    since no PUBREL follows a PUBREC with an error.

    [MQTT-3.3.5-2] MQTT 3.1.1 has no negative PUBACK: the ack is a plain one, and the message goes nowhere.
    """
    if output.version != 5:
        return acks, 0
    columns = run.columns
    ids = memoryview(columns.packet_ids).cast("H")
    explained = {refusal: output.explain(refusal[1]) for refusal in set(refused.values())}
    out = []
    ended = 0
    for i in range(run.start, run.stop):
        qos = (columns.flags[i] & QOS_BITS) >> QOS_SHIFT
        if qos:
            refusal = refused.get(i)
            kind = Puback if qos == 1 else Pubrec
            if refusal is None:
                answer = kind(ids[i], Reason.SUCCESS, NO_PROPERTIES)
            else:
                ended += qos == 2
                answer = kind(ids[i], refusal[0], explained[refusal])
            out.append(output.encoded(answer) or b"")
    return b"".join(out), ended
