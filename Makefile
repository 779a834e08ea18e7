# make run    install what is missing and start the broker on 127.0.0.1:1883
# make test   install everything and run the tests, kernels compiled and interpreted, some on Spark; the last lines name what failed
# make test-spark   all tests of what runs on Spark
# make test-cluster   all tests of clusters of brokers, the long ones too, and some of the broker on top of their log
# make soak   the tests that take minutes each: a broker killed 50 times, kills in the midst of Spark jobs
# make check  style, types, room borders, module sizes
# make bench  the benchmarks (the protocol interpreted too), then a comparison with Mosquitto and NATS
# make fuzz   a longer fuzz run, kernels built with AddressSanitizer
# make lock   renew the locks, with hashes, from pyproject.toml

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
FUZZ_SECONDS ?= 60

.PHONY: run test test-spark test-cluster soak check bench fuzz install kernels lock clean FORCE

run: install
	$(BIN)/everlog serve

install: .venv/.installed .venv/.kernels
kernels: .venv/.kernels

.venv/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "everlog needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	touch $@

# What the locks name must have their hashes. They are made on Python 3.11: what another one needs beside it comes without.
.venv/.installed: .venv/.python pyproject.toml requirements-run.lock
	$(PIP) install --require-hashes --no-deps -r requirements-run.lock
	EVERLOG_NO_KERNELS=1 $(PIP) install --no-build-isolation -e .
	touch $@

.venv/.all: .venv/.installed requirements.lock
	$(PIP) install --require-hashes --no-deps -r requirements.lock
	EVERLOG_NO_KERNELS=1 $(PIP) install --no-build-isolation -e '.[all]'
	touch $@

.venv/.kernels: .venv/.installed FORCE
	$(BIN)/python setup.py -q build_ext --inplace -j 2

FORCE:

.venv/.servers:
	tools/install-servers
	touch $@

test: .venv/.all .venv/.kernels .venv/.servers
	$(BIN)/python tools/run_tests.py

test-spark: .venv/.all .venv/.kernels
	$(BIN)/python -m pytest -q tests/spark -m 'not soak'

test-cluster: .venv/.all .venv/.kernels .venv/.servers
	$(BIN)/python -m pytest -q -m 'soak or not soak' tests/unit/cluster tests/crash/test_cluster_*.py \
	    tests/crash/test_forwarded_messages.py tests/crash/test_tail_simulation.py tests/crash/test_fleet_simulation.py \
	    tests/spark/test_broker_cluster.py
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
	$(PIP) install --no-deps -r requirements.lock
	$(BIN)/python tools/lock_hashes.py

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find src -name '*.so' -delete
