"""A shared group's cursor against a plain model: who has what, whatever is dealt, acknowledged, lost and too late."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from everlog.sessions import GroupCursor, Owed, shares
from everlog.sessions.row_format import pack_owed, unpack_owed

MEMBERS = ("anne", "bert", "carl")
TOPICS = (b"a", b"b", b"c")
LIMIT = 12


def holder(cursor: GroupCursor, position: int) -> str | None:
    """Return the member that has a message, if one does."""
    return cursor._deal_of(position).member if position in cursor._inflight else None


class Plain:
    """A message as the model sees it."""

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.member: str | None = None
        self.packet_id = 0
        self.since = 0.0
        self.stays = False
        self.deals = 0
        self.last = ("", 0)


class Dealing(RuleBasedStateMachine):
    """The dealer keeps the rules of `topicorder` where the group is ordered; members do as they please."""

    ordered = False

    def __init__(self) -> None:
        super().__init__()
        self.cursor = GroupCursor(LIMIT, self.ordered)
        self.open: dict[int, Plain] = {}  # not done
        self.next = 0
        self.now = 0.0
        self.next_id = dict.fromkeys(MEMBERS, 65530)

    def _deal(self, position: int, member: str, stays: bool) -> None:
        plain = self.open[position]
        first = self.next_id[member]
        self.next_id[member] = first % 65_535 + 1
        self.cursor.dealt(member, [position], first, self.now, stays, [plain.topic] if self.ordered else None)
        plain.member, plain.packet_id, plain.since, plain.stays = member, first, self.now, stays
        plain.deals += 1

    @precondition(lambda self: self.cursor.room > 0)
    @rule(topic=st.sampled_from(TOPICS), member=st.sampled_from(MEMBERS), stays=st.booleans(), has_credit=st.booleans())
    def deal_new(self, topic: bytes, member: str, stays: bool, has_credit: bool) -> None:
        position = self.next
        if not self.ordered:
            if has_credit:
                self.next += 1
                self.open[position] = Plain(topic)
                self._deal(position, member, stays)
            return
        keeper = self.cursor.keeper(topic)
        self.next += 1
        self.open[position] = Plain(topic)
        if self.cursor.is_waiting(topic) or (keeper is not None and not has_credit):
            self.cursor.skip(position, topic)
        else:
            self._deal(position, keeper or member, stays)

    @precondition(lambda self: not self.ordered and self.cursor.room > 2)
    @rule(member=st.sampled_from(MEMBERS), stays=st.booleans())
    def deal_a_stretch(self, member: str, stays: bool) -> None:
        positions = [self.next, self.next + 1, self.next + 2]
        first = self.next_id[member]
        self.cursor.dealt(member, positions, first, self.now, stays)
        for k, position in enumerate(positions):
            plain = self.open[position] = Plain(b"a")
            plain.member, plain.since, plain.stays, plain.deals = member, self.now, stays, 1
            plain.packet_id = (first - 1 + k) % 65_535 + 1
        self.next_id[member] = (first + 2) % 65_535 + 1
        self.next += 3

    @rule(members=st.lists(st.sampled_from(MEMBERS), min_size=1))
    def deal_owed(self, members: list[str]) -> None:
        if not self.ordered:
            for position, member in zip(self.cursor.each_owed(), members, strict=False):
                self._deal(position, member, False)
            return
        for keeper in (None, *MEMBERS):
            for topic in self.cursor.waiting(keeper, 2):
                member = self.cursor.keeper(topic) or members[0]
                for position in self.cursor.oldest_of(topic, len(members)):
                    self._deal(position, member, False)

    @precondition(lambda self: not self.ordered)
    @rule()
    def look_at_what_is_owed(self) -> None:
        assert list(self.cursor.each_owed()) == list(self.cursor.each_owed()) == sorted(self.cursor.owed)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        known = sorted(self.open)
        positions = data.draw(st.lists(st.sampled_from([*known, self.next + 5]), unique=True))
        dealt = [one for one in positions if one not in self.open or self.open[one].deals]  # nobody acks the others
        assert self.cursor.acked(dealt) == sum(one in self.open for one in dealt)
        for one in dealt:
            self.open.pop(one, None)

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member: str) -> None:
        mine = [one for one, plain in self.open.items() if plain.member == member]
        back = [one for one in mine if not self.open[one].stays]
        assert self.cursor.left(member) == len(back)
        for one in mine:
            if self.open[one].stays:
                del self.open[one]
            else:
                self._return(one)

    @rule(age=st.integers(0, 5), members=st.sets(st.sampled_from(MEMBERS)))
    def time_out(self, age: int, members: set[str]) -> None:
        before = self.now - age
        late = {
            one
            for one, plain in self.open.items()
            if plain.member in members and not plain.stays and plain.since <= before
        }
        if self.ordered:
            topics = {self.open[one].topic for one in late}
            late |= {
                one for one, plain in self.open.items() if plain.topic in topics and plain.member and not plain.stays
            }
        expected: dict[str, set[int]] = {}
        for one in late:
            expected.setdefault(str(self.open[one].member), set()).add(one)
        taken = self.cursor.overdue(before, members)
        assert {member: set(positions) for member, positions in taken.items()} == expected
        for one in late:
            self._return(one)

    def _return(self, position: int) -> None:
        plain = self.open[position]
        plain.last = (str(plain.member), plain.packet_id)
        plain.member, plain.stays = None, False

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def restart(self) -> None:
        """As a broker does: what stays with sessions is theirs, the rest is owed."""
        packed = pack_owed(self.cursor.unfinished())
        self.cursor = GroupCursor(LIMIT, self.ordered)
        self.cursor.restore(unpack_owed(packed))
        for one in list(self.open):
            if self.open[one].stays:
                del self.open[one]
            elif self.open[one].member is not None:
                self._return(one)
        if self.ordered:
            assert sorted(self.cursor.unnamed()) == sorted(self.cursor.owed)
            for one in self.cursor.unnamed():
                self.cursor.name(one, self.open[one].topic)

    @invariant()
    def every_message_is_where_the_model_has_it(self) -> None:
        cursor = self.cursor
        inflight = {one: plain.member for one, plain in self.open.items() if plain.member is not None}
        assert {one: holder(cursor, one) for one in self.open} == {one: inflight.get(one) for one in self.open}
        assert set(cursor.owed) == set(self.open) - set(inflight)
        assert (cursor.inflight, cursor.pending) == (len(inflight), len(self.open))
        assert cursor.pending <= LIMIT
        assert cursor.members() == set(inflight.values())
        assert cursor.floors([self.next]) == (min([self.next, *self.open]),)

    @invariant()
    def what_is_owed_says_who_had_it(self) -> None:
        for one, owed in self.cursor.owed.items():
            plain = self.open[one]
            assert (owed.member, owed.packet_id) == plain.last
            assert owed.deals == plain.deals

    @invariant()
    def a_topic_is_with_one_member_and_in_order(self) -> None:
        if not self.ordered:
            return
        for topic in TOPICS:
            mine = {one: plain for one, plain in self.open.items() if plain.topic == topic}
            assert len({plain.member for plain in mine.values() if plain.member is not None}) <= 1
            owed = [one for one, plain in mine.items() if plain.member is None]
            assert self.cursor.is_waiting(topic) == bool(owed)
            assert self.cursor.oldest_of(topic, 1) == sorted(owed)[:1]
            assert self.cursor.oldest_of(topic, 99) == sorted(owed)
            for keeper in (None, *MEMBERS):
                is_there = topic in self.cursor.waiting(keeper, 99)
                assert is_there == (bool(owed) and self.cursor.keeper(topic) == keeper)


class DealingInOrder(Dealing):
    ordered = True


@pytest.mark.parametrize("machine", [Dealing, DealingInOrder])
def test_the_cursor_does_what_the_model_says(machine: type[Dealing]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=80, stateful_step_count=40))


@given(st.integers(0, 200), st.lists(st.integers(0, 40), max_size=8), st.integers(0, 100))
def test_shares_are_even_as_far_as_there_is_credit(count: int, credits: list[int], turn: int) -> None:
    dealt = shares(count, credits, turn)
    got = [sum(size for which, size in dealt if which == k) for k in range(len(credits))]
    assert all(size > 0 for _, size in dealt)
    assert sum(got) == min(count, sum(credits))
    assert all(one <= credit for one, credit in zip(got, credits, strict=True))
    unfilled = [one for one, credit in zip(got, credits, strict=True) if one < credit]
    assert not unfilled or max(got, default=0) - min(unfilled) <= 1, "one got more while another had credit left"


def test_single_messages_go_round() -> None:
    assert [shares(1, [5, 0, 5], turn)[0][0] for turn in range(4)] == [0, 2, 2, 0]


def test_an_entry_with_extreme_values_comes_back() -> None:
    entries = [(255 << 56 | (1 << 56) - 1, Owed("名" * 100, 65_535, 65_535)), (0, Owed())]
    assert unpack_owed(pack_owed(entries)) == entries
