"""Answers to a run of which some messages were refused: the slow way, a packet at a time."""

from typing import TYPE_CHECKING

from everlog.base import PublishRun
from everlog.mqtt import NO_PROPERTIES, Puback, Pubrec, Reason

if TYPE_CHECKING:
    from everlog.broker.outgoing import Outgoing

_WORDS = {
    Reason.NOT_AUTHORIZED: "not allowed to publish to this topic",
    Reason.QUOTA_EXCEEDED: "no more can be retained",
}


def refuse(answers: bytes, run: PublishRun, refused: dict[int, int], connection: "Outgoing") -> tuple[bytes, int]:
    """The answers with a reason code for the dropped messages to `refused` topics (topic id: reason).

    Also how many QoS 2 exchanges end with that, since no PUBREL follows a PUBREC with an error.

    MQTT 3.1.1 has no negative PUBACK: [MQTT-3.3.5-2] the answer is a plain one, and the message goes nowhere.
    """
    if connection.decoder.version != 5:
        return answers, 0
    columns = run.columns
    topics = memoryview(columns.topics).cast("I")
    ids = memoryview(columns.packet_ids).cast("H")
    words = {reason: connection.explain(_WORDS.get(Reason(reason), "")) for reason in set(refused.values())}
    out = []
    ended = 0
    for i in range(run.start, run.stop):
        qos = columns.flags[i] >> 1 & 3
        if qos:
            reason = Reason(refused.get(topics[i], 0) if columns.flags[i] & 0x80 else 0)
            ended += qos == 2 and reason.is_error
            kind = Puback if qos == 1 else Pubrec
            out.append(connection.encoded(kind(ids[i], reason, words.get(reason, NO_PROPERTIES))) or b"")
    return b"".join(out), ended
