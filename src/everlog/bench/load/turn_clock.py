"""The turns of a process's event loop, timed from outside: how long it works between two waits for events.

A library that is compiled here and preloaded stands before `epoll_wait`; so it works with any program that waits by the
C library. Turns of the main thread only. The longest of each kind is kept in a file that both sides map.
"""

import mmap
import struct
from pathlib import Path

from everlog.bench.load.slow_sync import preloaded

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct { long long cpu, wall, turns; } *worst;
static long long cpu_from, wall_from;
static int loop_set = -1;  /* the first that is waited on; one within it is asked within a turn */

static long long clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int is_loop(void) { return worst && syscall(SYS_gettid) == getpid(); }

static void over(void) {
    long long cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_from, wall = clock_ns(CLOCK_MONOTONIC) - wall_from;
    if (!wall_from) return;
    if (cpu > worst->cpu) worst->cpu = cpu;
    if (wall > worst->wall) worst->wall = wall;
    worst->turns++;
}

static void begun(void) {
    cpu_from = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    wall_from = clock_ns(CLOCK_MONOTONIC);
}

__attribute__((constructor)) static void map(void) {
    int file = open(getenv("TURN_CLOCK_FILE"), O_RDWR);
    void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *worst, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) worst = at;
    if (file >= 0) close(file);
}

int epoll_pwait(int set, struct epoll_event *events, int most, int timeout, const sigset_t *mask) {
    static int (*real)(int, struct epoll_event *, int, int, const sigset_t *);
    if (!real) real = dlsym(RTLD_NEXT, "epoll_pwait");
    if (loop_set < 0 && is_loop()) loop_set = set;
    if (set != loop_set || !is_loop()) return real(set, events, most, timeout, mask);
    over();
    int found = real(set, events, most, timeout, mask);
    begun();
    return found;
}

int epoll_wait(int set, struct epoll_event *events, int most, int timeout) {
    return epoll_pwait(set, events, most, timeout, NULL);
}
"""
_FIELDS = struct.Struct("<3q")


def turn_clock(folder: Path) -> dict[str, str]:
    """Compile the library into a folder; return the variables that let a process tell its turns in a file there."""
    file = folder / "turns"
    file.write_bytes(bytes(_FIELDS.size))
    return {"LD_PRELOAD": preloaded(folder, "turn_clock", _SOURCE), "TURN_CLOCK_FILE": str(file)}


class TurnClock:
    """The reader's side: the longest turn since `reset`."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FIELDS.size)

    def reset(self) -> None:
        """Forget the turns so far."""
        self._map[:] = bytes(_FIELDS.size)

    def read(self) -> dict[str, float]:
        """Return the longest turn in milliseconds, of CPU and by the clock, and how many there were."""
        cpu, wall, turns = _FIELDS.unpack(self._map[:])
        return {"cpu_ms": round(cpu / 1e6, 3), "wall_ms": round(wall / 1e6, 3), "turns": turns}
