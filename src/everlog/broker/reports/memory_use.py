"""The memory of this process, as the system counts it."""

import os
import resource
import sys

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


def resident_bytes() -> int:
    """Return how much memory is taken now; where the system does not tell, the most that it was."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """Return the most memory that was taken at a time, as the system has noted it, which may be a moment ago."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT
