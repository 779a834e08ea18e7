"""What publishers were told and subscribers got, compared: knows nothing of how a broker works."""

import threading
from collections import defaultdict


class MessageHistory:
    """Messages are `publisher topic number`, numbered by each publisher from 1 on. Any thread may note."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._qos: dict[tuple[str, str, int], int] = {}
        self._acked: set[tuple[str, str, int]] = set()
        self._unsure: set[tuple[str, str, int]] = set()  # sent more than once at QoS 1, or never answered
        self._got: dict[str, list[tuple[str, str, int]]] = defaultdict(list)

    def sent(self, publisher: str, topic: str, number: int, qos: int) -> bytes:
        """Note what is sent, and return its payload."""
        with self._lock:
            self._qos[publisher, topic, number] = qos
        return f"{publisher} {topic} {number}".encode()

    def acked(self, publisher: str, topic: str, number: int) -> None:
        """Note that the broker has answered for it."""
        with self._lock:
            self._acked.add((publisher, topic, number))

    def unsure(self, publisher: str, topic: str, number: int) -> None:
        """Note that a connection ended before the answer."""
        with self._lock:
            self._unsure.add((publisher, topic, number))

    def got(self, subscriber: str, payload: bytes) -> None:
        """Note what a subscriber was sent."""
        publisher, topic, number = payload.decode().split(" ")
        with self._lock:
            self._got[subscriber].append((publisher, topic, int(number)))

    @property
    def acked_count(self) -> int:
        """How many messages were acknowledged."""
        return len(self._acked)

    def payloads_acked(self) -> list[bytes]:
        """Return what was acknowledged."""
        with self._lock:
            return [f"{publisher} {topic} {number}".encode() for publisher, topic, number in self._acked]

    def payloads(self, qos: int) -> list[bytes]:
        """Return what was sent at a QoS, acknowledged or not."""
        with self._lock:
            sent = [one for one, its_qos in self._qos.items() if its_qos == qos]
        return [f"{publisher} {topic} {number}".encode() for publisher, topic, number in sent]

    def has_all(self, subscriber: str) -> bool:
        """Return whether a subscriber has all that was acknowledged."""
        with self._lock:
            return self._acked <= set(self._got[subscriber])

    def problems(self, subscriber: str) -> list[str]:
        """Return all that is wrong with what a subscriber of QoS 2 got."""
        got, found = self._got[subscriber], []
        missing = self._acked - set(got)
        found += [f"{one} was acknowledged and is lost" for one in sorted(missing)]
        found += [f"{one} was never sent" for one in got if one not in self._qos]
        seen: set[tuple[str, str, int]] = set()
        last: dict[tuple[str, str], int] = defaultdict(int)
        for one in got:
            publisher, topic, number = one
            if one in seen:
                if self._qos.get(one) == 2 or one not in self._unsure:
                    found.append(f"{one} came twice")
                continue
            seen.add(one)
            if number <= last[publisher, topic]:
                found.append(f"{one} came after {last[publisher, topic]}")
            last[publisher, topic] = number
        return found
