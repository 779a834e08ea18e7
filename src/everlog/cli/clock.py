"""`everlog clock`: whether a broker believes the wall clock, and the operator's word that it is right."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from everlog.app import ClockRecord, boot_id, boot_us, read_clock_record, wall_us, write_clock_record
from everlog.cli.data_directory import Data, check_store


def clock(
    data: Data, accept: Annotated[bool, typer.Option("--accept", help="The wall clock is right: go on.")] = False
) -> int:
    """Say whether a jump of the wall clock keeps everything from expiring; exit code 1 if so."""
    check_store(data)
    now_us = wall_us()
    print(f"the wall clock shows {_time(now_us)}")
    if accept:
        write_clock_record(str(data), ClockRecord(boot=boot_id(), offset_us=now_us - boot_us()))
        print("accepted: a broker that runs takes it up within seconds, another when it starts")
        return 0
    record = read_clock_record(str(data))
    if record is None or not record.doubted_us:
        print("it is believed: things expire")
        return 0
    way = "ahead" if record.was_ahead else "back"
    print(f"it jumped {way}, to {_time(record.doubted_us)}: nothing expires until it returns or you --accept it")
    return 1


def _time(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
