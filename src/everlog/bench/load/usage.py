"""The cost of processes: CPU time and memory of the broker, CPU time of this process, and what else ran meanwhile."""

import contextlib
import os
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everlog.base import Unavailable
from everlog.bench.load.posix import now_ns

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the machine at one moment; `cpu_s` is None when the broker is not known or gone."""

    at_ns: int
    own_cpu_s: float
    machine_cpu_s: float
    stolen_s: float
    cpu_s: float | None
    rss_mb: float
    peak_mb: float


def family(pids: Sequence[int]) -> list[int]:
    """Return processes and their descendants."""
    found = list(pids)
    for pid in found:  # grows meanwhile
        for task in _tasks(pid):
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile says nothing of the others
                found += map(int, _text(f"/proc/{pid}/task/{task}/children").split())
    return found


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()


def cpu_of(pid: int) -> float:
    """Return the seconds of CPU, user and system, that a process has used in all its threads."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of Linux
    except OSError:
        return _stat_s(pid, 11)


def _ended_of(pid: int) -> float:
    """Return the seconds of CPU that its descendants had used which have ended."""
    return _stat_s(pid, 13)


def _stat_s(pid: int, field: int) -> float:
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[field]) + int(fields[field + 1])) * _TICK_S


def _memory_mb(pid: int) -> tuple[float, float]:
    sizes = {"VmRSS:": 0.0, "VmHWM:": 0.0}
    for line in _text(f"/proc/{pid}/status").splitlines():
        name, _, rest = line.partition("\t")
        if name in sizes:
            sizes[name] = int(rest.split()[0]) / 1024
    return sizes["VmRSS:"], sizes["VmHWM:"]


def sample(pids: Sequence[int]) -> Sample:
    """Return the state of the machine now."""
    user, nice, system, _, _, irq, softirq, steal = map(int, _text("/proc/stat").split(None, 9)[1:9])
    busy = (user + nice + system + irq + softirq) * _TICK_S
    cpu: float | None = 0.0 if pids else None
    rss = peak = 0.0
    try:
        for pid in family(pids):
            cpu = (cpu or 0.0) + cpu_of(pid) + _ended_of(pid)
            one = _memory_mb(pid)
            rss, peak = rss + one[0], peak + one[1]
    except OSError:
        cpu = None
    return Sample(now_ns(), time.process_time(), busy, steal * _TICK_S, cpu, rss, peak)


def reset_peak(pids: Sequence[int]) -> None:
    """Let the peak of resident memory start again, where the system lets us."""
    for pid in family(pids):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/clear_refs", "w") as file:
            file.write("5")


def between(before: Sample, after: Sample, messages: float) -> dict[str, Any]:
    """Return CPU and memory of a stretch in which so many messages counted."""
    wall = max((after.at_ns - before.at_ns) / 1e9, 1e-9)
    own = after.own_cpu_s - before.own_cpu_s
    each = 1e6 / messages if messages else 0.0
    figures: dict[str, Any] = {
        "generator": {
            "cpu_s": round(own, 4),
            "cpu_pct": round(100 * own / wall, 1),
            "cpu_us_per_msg": round(own * each, 3),
        }
    }
    if before.cpu_s is not None and after.cpu_s is not None:
        cpu = after.cpu_s - before.cpu_s
        figures["broker"] = {
            "cpu_s": round(cpu, 4),
            "cpu_pct": round(100 * cpu / wall, 1),
            "cpu_us_per_msg": round(cpu * each, 3),
            "rss_start_mb": round(before.rss_mb, 2),
            "rss_mb": round(after.rss_mb, 2),
            "peak_rss_mb": round(after.peak_mb, 2),
        }
        figures["generator"]["vs_broker"] = round(own / cpu, 3) if cpu else None
        other = after.machine_cpu_s - before.machine_cpu_s - own - cpu
        figures["other_cpu_pct"] = round(100 * max(other, 0) / wall, 1)
        figures["steal_pct"] = round(100 * (after.stolen_s - before.stolen_s) / wall, 1)
    return figures


def metric(port: int, name: str) -> float:
    """Return a metric without labels that a broker on this machine tells over HTTP."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        for line in page.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
    raise Unavailable(f"the broker has no metric {name}", hint="is it of the same version?")
