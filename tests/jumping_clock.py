"""A wall clock that a test can move for another process, by a library that is compiled here and preloaded."""

import os
import struct
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    static const volatile long *ahead_s;
    if (!real) {
        int file = open(getenv("CLOCK_AHEAD"), O_RDONLY);
        ahead_s = mmap(0, sizeof *ahead_s, PROT_READ, MAP_SHARED, file, 0);
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    }
    int failed = real(clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += *ahead_s;
    return failed;
}
"""


class JumpingClock:
    """`variables` make a process see a wall clock that is ahead by what `jump` says; other clocks are as they are."""

    def __init__(self, folder: Path) -> None:
        self._ahead = folder / "clock_ahead"
        library = folder / "jumping_clock.so"
        command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library), "-ldl"]
        subprocess.run(command, input=_SOURCE, text=True, check=True)
        self.variables = {"LD_PRELOAD": str(library), "CLOCK_AHEAD": str(self._ahead)}
        self.jump(0)

    def jump(self, ahead_s: int) -> None:
        """Set how far the clock is ahead from now on."""
        handle = os.open(self._ahead, os.O_RDWR | os.O_CREAT)  # written in place: it is mapped
        os.pwrite(handle, struct.pack("q", ahead_s), 0)
        os.close(handle)
