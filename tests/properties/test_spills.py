"""Slow transient subscribers against a plain model: each message once across memory, log and live, and in order."""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.parts import RouterStage, SinkClient

from everlog.sessions import Subscribed
from everlog.topics import matches, parse_filter

NAMES = ("one", "two", "three")
WORKERS = ("first", "second")
SHARED = "$share/g/#"
NAME = st.sampled_from(NAMES)
WORKER = st.sampled_from(WORKERS)
TOPIC = st.sampled_from(("a", "bb", "cc", "ddd"))
FILTER = st.sampled_from(("a", "bb", "+", "#"))
QUEUE_BYTES = 600  # two messages make it long


@dataclass(slots=True)
class Model:
    """What one client is owed and what may come, as numbers in the order of publishing."""

    client: SinkClient
    filters: dict[str, int] = field(default_factory=dict)  # each with the number of the first message it is for
    owed: list[int] = field(default_factory=list)  # at QoS 1
    maybe: set[int] = field(default_factory=set)  # at QoS 0, or of a filter that was given up meanwhile

    def matches(self, topic: str, number: int) -> bool:
        return any(first <= number and matches(parse_filter(text), topic) for text, first in self.filters.items())


class Spills(RuleBasedStateMachine):
    """What publishers, slow subscribers and the disk do, in any order."""

    @initialize(shards=st.sampled_from((1, 3)))
    def begin(self, shards: int) -> None:
        self.stage = RouterStage(shards, manual=True, spill_bytes=1 << 30)
        self.stage.router.spills.on_over_quota = self._too_slow
        self.topics: list[tuple[str, int]] = []
        self.models: dict[str, Model] = {}
        self.ended: list[Model] = []
        self.workers: dict[str, SinkClient] = {}
        self.shared: list[int] = []
        self.durable: list[str] = []
        for name in NAMES:
            self._come(name, 3)
        self.subscribe("one", "a")
        self.subscribe("two", "#")

    def _too_slow(self, session) -> None:
        raise AssertionError(f"{session.client_id} would be closed")

    def _come(self, name: str, inflight: int) -> None:
        self.models[name] = Model(self.stage.transient(name, QUEUE_BYTES, inflight))

    @rule(topics=st.lists(TOPIC, min_size=1, max_size=10), qos=st.sampled_from((0, 1, 1, 1, 1)), turn=st.booleans())
    def publish(self, topics: list[str], qos: int, turn: bool) -> None:
        for topic in topics:
            number = len(self.topics)
            self.topics.append((topic, qos))
            for model in self.models.values():
                if model.matches(topic, number):
                    model.owed.append(number) if qos else model.maybe.add(number)
            if self.workers and qos:
                self.shared.append(number)
            self.stage.publish(str(number).rjust(40), topic=topic, qos=qos, turn=turn)

    @rule(name=NAME, count=st.integers(1, 6))
    def acknowledge(self, name: str, count: int) -> None:
        self.stage.puback(self.models[name].client, count)

    @rule(name=WORKER, count=st.integers(1, 6))
    def acknowledge_work(self, name: str, count: int) -> None:
        if name in self.workers:
            self.stage.puback(self.workers[name], count)

    @rule(name=NAME, ready=st.booleans())
    def set_ready(self, name: str, ready: bool) -> None:
        client = self.models[name].client
        client.session.set_ready(ready)
        if ready:
            self.stage.router.pump(client.session)

    @rule(name=NAME)
    def catch_up(self, name: str) -> None:
        """It is fast for a while: most spills end so."""
        self.set_ready(name, True)
        for _ in range(20):
            self.stage.puback(self.models[name].client)
            self.stage.turn()

    @rule()
    def commit(self) -> None:
        self.stage.commit()

    @rule()
    def turn(self) -> None:
        self.stage.turn()

    @rule(commits=st.booleans())
    def sweep(self, commits: bool) -> None:
        if commits:
            self.stage.turn()
            self.stage.commit()
        self.stage.sweep()

    @rule(name=NAME, text=FILTER)
    def subscribe(self, name: str, text: str) -> None:
        model = self.models[name]
        if text in model.filters:
            return
        self._see_off(model)
        model.filters[text] = len(self.topics)
        since = self.stage.router.ends()
        self.stage.subscribe(model.client.session, Subscribed(text, 1, since=since))

    @rule(name=NAME, text=FILTER)
    def unsubscribe(self, name: str, text: str) -> None:
        model = self.models[name]
        if text not in model.filters:
            return
        self._see_off(model)
        del model.filters[text]
        self.stage.unsubscribe(model.client.session, text)
        still = [number for number in model.owed if model.matches(self.topics[number][0], number)]
        model.maybe |= set(model.owed) - set(still)
        model.owed = still

    def _see_off(self, model: Model) -> None:
        """Route what was published before a subscription changes, as far as it waits for the end of a turn."""
        self.stage.turn()

    @rule(name=NAME, inflight=st.sampled_from((1, 3, 10)))
    def come_again(self, name: str, inflight: int) -> None:
        """A clean session ends with its connection, and the next begins anew."""
        model = self.models[name]
        self.stage.turn()
        self.stage.end(model.client)
        self.ended.append(model)
        filters = model.filters
        self._come(name, inflight)
        for text in sorted(filters):
            self.subscribe(name, text)

    @rule(text=FILTER)
    def keep(self, text: str) -> None:
        """A durable session subscribes to something, and stays."""
        if len(self.durable) < 2:
            self.durable.append(text)
            self.stage.kept.add(text)

    @rule(name=WORKER)
    def work(self, name: str) -> None:
        if name not in self.workers:
            self.stage.turn()
            self.stage.commit()  # a transient group gets what is routed from now on
            client = self.workers[name] = self.stage.transient(name, QUEUE_BYTES, 3)
            self.stage.subscribe(client.session, Subscribed(SHARED, 1))

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        stage = self.stage
        for _ in range(3000):
            stage.turn()
            stage.commit()
            for client in self._clients():
                client.session.set_ready(True)
                stage.router.pump(client.session)
                stage.puback(client)
            if self._is_done():
                break
            stage.sweep()
        else:
            raise AssertionError(f"somebody still waits: {self.models} {self.workers}")
        for model in [*self.models.values()]:
            self._check(model, whole=True)
        for model in self.ended:
            self._check(model, whole=False)
        if self.workers:
            got = sorted(self._numbers(client) for client in self.workers.values())
            at_qos_1 = sorted(number for one in got for number in one if self.topics[number][1])
            assert at_qos_1 == self.shared
        for name in list(self.models):
            stage.end(self.models.pop(name).client)
        for client in self.workers.values():
            stage.end(client)
        for _ in range(3):
            stage.sweep()
        assert stage.kept.filters() == sorted((text, 0) for text in set(self.durable)), "all is let go"
        assert len(stage.router.spills) == 0
        assert len(stage.groups) == 0

    def _is_done(self) -> bool:
        sessions = [client.session for client in self._clients()]
        return not any(one.waiting or one.inflight for one in sessions) and not len(self.stage.router.spills)

    def _clients(self) -> list[SinkClient]:
        return [*(model.client for model in self.models.values()), *self.workers.values()]

    def _numbers(self, client: SinkClient) -> list[int]:
        return [int(payload) for payload in client.payloads]

    def _check(self, model: Model, whole: bool) -> None:
        got = self._numbers(model.client)
        assert len(set(got)) == len(got), "one came twice"
        assert set(got) <= set(model.owed) | model.maybe
        for topic in {topic for topic, _ in self.topics}:
            for qos in (0, 1):
                mine = [number for number in got if self.topics[number] == (topic, qos)]
                assert mine == sorted(mine), f"{topic} came in another order"
        if whole:
            assert set(model.owed) <= set(got), "some never came"
        else:  # what came of a topic is the first of what was owed
            for topic in {topic for topic, _ in self.topics}:
                owed = [number for number in model.owed if self.topics[number][0] == topic]
                mine = [number for number in got if number in owed]
                assert mine == owed[: len(mine)]


def test_each_message_comes_once_across_memory_log_and_live():
    some = settings(max_examples=120, stateful_step_count=40, suppress_health_check=list(HealthCheck), deadline=None)
    run_state_machine_as_test(Spills, settings=some)
