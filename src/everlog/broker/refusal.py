"""Answers to a run of which some messages were refused: the slow way, a packet at a time."""

from everlog.base import PublishRun
from everlog.mqtt import Puback, Pubrec, Reason, encode


def refuse(answers: bytes, run: PublishRun, refused: dict[int, int], version: int) -> bytes:
    """The answers with a reason code for the messages to `refused` topics (topic id: reason).

    MQTT 3.1.1 has no negative PUBACK: [MQTT-3.3.5-2] the answer is a plain one, and the message goes nowhere.
    """
    if version != 5:
        return answers
    columns = run.columns
    topics = memoryview(columns.topics).cast("I")
    ids = memoryview(columns.packet_ids).cast("H")
    out = []
    for i in range(run.start, run.stop):
        qos = columns.flags[i] >> 1 & 3
        if qos:
            packet = Puback if qos == 1 else Pubrec
            out.append(encode(packet(ids[i], Reason(refused.get(topics[i], 0))), 5))
    return b"".join(out)
