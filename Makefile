# make run    install what is missing and start the broker on 127.0.0.1:1883
# make test   install everything and run the tests, kernels compiled and interpreted, some on Spark; the last lines name what failed
# make test-spark   all tests of what runs on Spark
# make test-cluster   all tests of the log of a cluster, the long ones too, and some of the broker on top of it
# make soak   the tests that take minutes each: a broker killed 50 times, kills in the midst of Spark jobs
# make check  style, types, room borders, module sizes
# make bench  the benchmarks (the protocol interpreted too), then a comparison with Mosquitto and NATS
# make fuzz   a longer fuzz run, kernels built with AddressSanitizer
# make lock   renew requirements.lock from pyproject.toml

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
KERNEL_SOURCES := $(shell find src -name '*.pxd') $(patsubst %.pxd,%.py,$(shell find src -name '*.pxd'))
BUILD := setup.py src/everlog/_kernels.py
FUZZ_SECONDS ?= 60

.PHONY: run test test-spark test-cluster soak check bench fuzz install kernels lock clean

run: install
	$(BIN)/everlog serve

install: .venv/.installed .venv/.kernels
kernels: .venv/.kernels

.venv/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "everlog needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/.installed: .venv/.python pyproject.toml requirements.lock
	$(PIP) install -c requirements.lock setuptools Cython
	EVERLOG_NO_KERNELS=1 $(PIP) install --no-build-isolation -c requirements.lock -e .
	touch $@

.venv/.all: .venv/.installed
	EVERLOG_NO_KERNELS=1 $(PIP) install --no-build-isolation -c requirements.lock -e '.[all]'
	touch $@

.venv/.kernels: .venv/.installed $(BUILD) $(KERNEL_SOURCES)
	$(BIN)/python setup.py -q build_ext --inplace -j 2
	touch $@

.venv/.servers:
	tools/install-servers
	touch $@

test: .venv/.all .venv/.kernels .venv/.servers
	$(BIN)/python tools/run_tests.py

test-spark: .venv/.all .venv/.kernels
	$(BIN)/python -m pytest -q tests/spark -m 'not soak'

test-cluster: .venv/.all .venv/.kernels .venv/.servers
	$(BIN)/python -m pytest -q tests/unit/cluster tests/crash/test_cluster_tail.py tests/crash/test_cluster_log.py \
	    tests/crash/test_cluster_broker.py tests/crash/test_tail_simulation.py
	EVERLOG_TEST_CLUSTER=1 $(BIN)/python -m pytest -q tests/conformance/test_publish.py \
	    tests/conformance/test_persistent_sessions.py tests/conformance/test_retained.py tests/conformance/test_shared.py

soak: .venv/.all .venv/.kernels .venv/.servers
	$(BIN)/python -m pytest -q -m soak

check: .venv/.all .venv/.kernels
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_sizes.py

bench: .venv/.all .venv/.kernels .venv/.servers
	$(BIN)/python -m everlog.bench
	EVERLOG_PURE=1 $(BIN)/python -m everlog.bench protocol
	$(BIN)/everlog bench peers

fuzz: .venv/.all
	tools/fuzz $(FUZZ_SECONDS)

lock: .venv/.all
	$(BIN)/pip-compile -q --strip-extras --all-extras --allow-unsafe --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --upgrade -o requirements.lock pyproject.toml
	sed -i '/^everlog @/d' requirements.lock

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find src -name '*.so' -delete
