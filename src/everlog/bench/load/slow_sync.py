"""A slow disk on purpose: processes that wait a while in each sync of a file below some directory, or can't sync it.

A library that is compiled here and preloaded does it, so that any program that syncs by the C library can be slowed.
"""

import os
import subprocess
from pathlib import Path

from everlog.base import Unavailable

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int slowly(const char *name, int fd) {
    const char *ms = getenv("SLOW_SYNC_MS"), *below = getenv("SLOW_SYNC_BELOW"), *fails = getenv("SYNC_FAILS_WHILE");
    const char *stalls = getenv("SYNC_STALLS_WHILE");
    char link[64], path[PATH_MAX] = "", stalled[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (ms && below && readlink(link, path, sizeof path - 1) > 0 && !strncmp(path, below, strlen(below))) {
        struct timespec rest = {atol(ms) / 1000, atol(ms) % 1000 * 1000000};
        while (nanosleep(&rest, &rest) < 0 && errno == EINTR);
        if (stalls && !access(stalls, F_OK)) {
            snprintf(stalled, sizeof stalled, "%s.now", stalls);
            close(open(stalled, O_WRONLY | O_CREAT, 0600));
            struct timespec moment = {0, 1000000};
            while (!access(stalls, F_OK)) nanosleep(&moment, NULL);
        }
        if (fails && !access(fails, F_OK)) {
            errno = EIO;
            return -1;
        }
    }
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
}

int fsync(int fd) { return slowly("fsync", fd); }
int fdatasync(int fd) { return slowly("fdatasync", fd); }
"""


def slow_syncs(folder: Path, below: Path, delay_ms: int) -> dict[str, str]:
    """Compile the library into a folder; return the variables that make a process slow in syncs below a directory.

    While the folder holds a file `syncs-stall`, none of them ends, and the first makes a file `syncs-stall.now`. While
    it holds a file `syncs-fail`, all of them fail.
    """
    return {
        "LD_PRELOAD": preloaded(folder, "slow_sync", _SOURCE),
        "SLOW_SYNC_MS": str(delay_ms),
        "SLOW_SYNC_BELOW": str(below.resolve()),
        "SYNC_STALLS_WHILE": str(folder / "syncs-stall"),
        "SYNC_FAILS_WHILE": str(folder / "syncs-fail"),
    }


def preloaded(folder: Path, name: str, source: str) -> str:
    """Compile a library that stands before the C library into a folder; return its path."""
    library = folder / f"{name}.so"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library), "-ldl"]
    try:
        subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"no library for {name.replace('_', ' ')}s: {error}", hint="it takes a C compiler") from error
    return str(library)
