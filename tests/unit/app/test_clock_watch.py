"""The watch over the wall clock: what it tells, what it writes down, and how an operator settles a doubt."""

import logging
from pathlib import Path
from typing import Any

import pytest

from everlog.app import ClockRecord, read_clock_record, write_clock_record
from everlog.app.clock_watch import ClockReader, ClockWatch, boot_id, boot_us, wall_us
from everlog.base import StorageError
from everlog.broker import Event
from everlog.cli.commands import main

S = 1_000_000
DAY = 86_400


class Machine:
    """The clocks of a machine, and the watches of brokers that run on it one after the other."""

    def __init__(self, data: Path) -> None:
        self.data = str(data)
        self.wall_us, self.boot_us, self.boot = 1_700_000_000 * S, 1000 * S, "first"

    def watch(self) -> ClockWatch:
        return ClockWatch(self.data, lambda: self.wall_us, lambda: self.boot_us, self.boot)

    def reader(self) -> ClockReader:
        return ClockReader(self.data, lambda: self.wall_us, lambda: self.boot_us, self.boot)

    def passes(self, seconds: int) -> None:
        self.wall_us += seconds * S
        self.boot_us += seconds * S

    def reboots(self, off_s: int) -> None:
        self.wall_us += off_s * S
        self.boot, self.boot_us = f"after {self.boot}", 0

    def record(self) -> ClockRecord:
        record = read_clock_record(self.data)
        assert record is not None
        return record


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO)
    return lambda: [record.msg.name for record in caplog.records if isinstance(record.msg, Event)]


async def test_a_jump_is_told_once_and_outlives_the_broker_until_the_clock_is_back(machine, told):
    watch = machine.watch()
    await watch.once()
    assert machine.record().doubted_us == 0
    machine.wall_us += DAY * S
    for _ in range(3):
        await watch.once()
        machine.passes(1)
    assert told() == ["clock_jumped"]
    assert machine.record().doubted_us
    machine.passes(10)
    again = machine.watch()
    assert again.clock.due_us() == 0
    assert told() == ["clock_jumped"] * 2
    machine.wall_us -= DAY * S
    await again.once()
    assert again.clock.due_us() == machine.wall_us
    assert told()[2:] == ["clock_settled"]
    assert machine.record().doubted_us == 0


async def test_a_jump_while_no_broker_ran_is_seen_at_the_next_start_of_that_boot(machine):
    machine.watch()
    machine.passes(3 * DAY)
    assert machine.watch().clock.is_believed
    machine.wall_us += DAY * S
    assert not machine.watch().clock.is_believed


async def test_a_machine_that_was_off_is_believed_and_one_whose_clock_was_ahead_is_not(machine):
    machine.watch()
    machine.reboots(7 * DAY)
    watch = machine.watch()
    assert watch.clock.is_believed
    machine.wall_us += 365 * DAY * S
    await watch.once()
    machine.reboots(60)
    watch = machine.watch()
    assert not watch.clock.is_believed
    assert machine.record().doubted_us
    machine.passes(5)
    machine.wall_us -= 365 * DAY * S
    await watch.once()
    assert watch.clock.is_believed
    machine.wall_us -= DAY * S
    await watch.once()
    assert not watch.clock.is_believed  # behind
    machine.reboots(0)
    assert machine.watch().clock.is_believed  # a clock that is behind makes nothing due


@pytest.mark.parametrize("runs", [True, False])
async def test_an_operator_settles_it(machine, told, runs):
    watch = machine.watch()
    machine.wall_us += DAY * S
    await watch.once()
    write_clock_record(machine.data, ClockRecord(boot="first", offset_us=machine.wall_us - machine.boot_us))
    if runs:
        await watch.once()
        assert told() == ["clock_jumped", "clock_settled"]
    else:
        watch = machine.watch()
    assert watch.clock.due_us() == machine.wall_us
    machine.passes(5)
    assert machine.watch().clock.is_believed


async def test_a_doubt_that_could_not_be_written_down_is_not_settled_by_what_was_there(machine, told, monkeypatch):
    watch = machine.watch()
    machine.wall_us += DAY * S

    def fail(*_: object) -> None:
        raise StorageError("no room")

    with monkeypatch.context() as full:
        full.setattr("everlog.app.clock_watch.write_clock_record", fail)
        for _ in range(3):
            await watch.once()
    assert not watch.clock.is_believed
    assert told() == ["clock_jumped", "clock_unwritten"]
    await watch.once()
    assert machine.record().doubted_us


async def test_small_steps_that_add_up_are_written_down(machine):
    watch = machine.watch()
    before = machine.record()
    for _ in range(20):
        machine.wall_us += 5 * S
        await watch.once()
    assert machine.record().offset_us - before.offset_us >= 90 * S
    assert machine.watch().clock.is_believed


@pytest.mark.parametrize("text", ["{", '{"boot": 1}', '{"boot": "x", "version": 2}'])
def test_a_file_that_is_not_known_is_refused(machine, text):
    (Path(machine.data) / "clock.json").write_text(text)
    with pytest.raises(StorageError, match=r"clock.json"):
        machine.watch()


def test_the_clocks_of_this_machine():
    assert abs(wall_us() - boot_us() - (wall_us() - boot_us())) < S
    assert boot_id() == boot_id()


def test_the_command_shows_and_settles(tmp_path, capsys):
    assert main(["clock", str(tmp_path)]) == 2
    (tmp_path / "store").touch()
    assert main(["clock", str(tmp_path)]) == 0
    write_clock_record(str(tmp_path), ClockRecord(boot="x", doubted_us=1_800_000_000 * S, was_ahead=True))
    assert main(["clock", str(tmp_path)]) == 1
    assert "it jumped ahead, to 2027-01-15T08:00:00Z: nothing expires" in capsys.readouterr().out
    assert main(["clock", str(tmp_path), "--accept"]) == 0
    assert main(["clock", str(tmp_path)]) == 0
    assert ClockWatch(str(tmp_path)).clock.is_believed


async def test_a_process_beside_the_broker_doubts_and_believes_with_it(machine, told):
    watch = machine.watch()
    reader = machine.reader()
    machine.wall_us += DAY * S
    await reader.once()  # before the broker has written down its doubt
    assert reader.clock.due_us() == 0
    for _ in range(2):
        await watch.once()
        await reader.once()
        assert not reader.clock.is_believed
    machine.wall_us -= DAY * S
    await reader.once()
    assert reader.clock.is_believed
    machine.wall_us += DAY * S
    await watch.once()
    await reader.once()
    late = machine.reader()
    write_clock_record(machine.data, ClockRecord(boot=machine.boot))  # as `everlog clock --accept` does
    for one in (reader, late):
        assert not one.clock.is_believed
        await one.once()
        assert one.clock.is_believed
    assert told() == ["clock_jumped"]
