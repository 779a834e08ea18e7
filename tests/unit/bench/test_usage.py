"""What processes cost is counted whether they still run or not."""

import os
import subprocess
import sys

from everlog.bench.load.usage import sample

BURN = "import time\nuntil = time.process_time() + 0.3\nwhile time.process_time() < until: pass"


def test_the_cpu_time_of_a_child_that_has_ended_stays_counted() -> None:
    before = sample([os.getpid()])
    with subprocess.Popen([sys.executable, "-c", BURN + "\ninput()"], stdin=subprocess.PIPE) as child:
        child.communicate(b"\n")
    after = sample([os.getpid()])
    assert before.cpu_s is not None
    assert after.cpu_s is not None
    assert after.cpu_s - before.cpu_s > 0.25
