"""`python -m everlog.bench [name ...]`: runs the benchmarks and prints them."""

import sys

from everlog.bench.suites import SUITES, run_suites

if __name__ == "__main__":
    run_suites(sys.argv[1:] or SUITES)
