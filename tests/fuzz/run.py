"""Runs the fuzz targets: `python -m tests.fuzz.run SECONDS [SEED]`. What fails is printed as hex, to be a test's input.

`tools/fuzz` calls it on kernels that were built with AddressSanitizer.
"""

import random
import sys
import time
from collections.abc import Iterator

from tests.fuzz.mutation import Corpus
from tests.fuzz.nats import fuzz_nats, nats_stream
from tests.fuzz.target import fuzz_batch, fuzz_one
from tests.twins import TWINS

from everlog import _kernels


def inputs(seed: int) -> Iterator[tuple[object, bytes]]:
    """Targets and their input without end, the same for the same seed."""
    corpus = Corpus()
    chance, apart = random.Random(seed), random.Random(seed)
    while True:
        for _ in range(17):
            yield fuzz_one, corpus.stream(chance)
        yield fuzz_one, corpus.noise(chance)
        yield fuzz_nats, nats_stream(apart)
        yield fuzz_batch, corpus.batch(chance)
        yield fuzz_batch, corpus.batch(chance)


def attempt(target: object, data: bytes) -> None:
    """Run a target; whatever it raises names the input."""
    try:
        target(data)  # type: ignore[operator]
    except BaseException as error:
        error.add_note(f"{target.__name__}(bytes.fromhex({data.hex()!r}))")  # type: ignore[attr-defined]
        raise


def main(seconds: float, seed: int) -> int:
    print(f"fuzzing {TWINS} in {_kernels.SOURCE_ROOT} for {seconds:.0f} s with seed {seed}", flush=True)
    end = time.monotonic() + seconds
    done = 0
    for target, data in inputs(seed):
        attempt(target, data)
        done += 1
        if time.monotonic() > end:
            break
    print(f"{done} inputs, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().getrandbits(32)))
