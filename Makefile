# Every target does its own set-up: a fresh machine needs Python 3.11+, git and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The CUDA that the NVIDIA driver is for, 12 or 13: see `nvidia-smi`.
CUDA ?= 12
# pip's options for torch alone, such as an index that has builds without CUDA.
TORCH_OPTIONS ?=
# What is never imported need not be compiled: that takes longer than to unpack it.
INSTALL := -m pip --quiet --disable-pip-version-check install --no-compile

# Where it is set, each of the many processes of the tests would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

# In each of them NumPy's OpenBLAS has a thread per core look for work, at first for 30 ms, which
# another process could use. 2 to the power of so many cycles; the default is 26.
export OPENBLAS_THREAD_TIMEOUT := 4

.DEFAULT_GOAL := help
.PHONY: image help demo test smoke coverage index lint types check fix bench gpu peers installs conformance stress protos blocking names clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  \1\t/' | expand -t 14

# One stamp a set of extras: set-up runs again only when pyproject.toml changes.
$(VENV)/.stamp-%: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) with opdispatch[$*] ..."
	@$(BIN)/python $(INSTALL) --editable '.[$*]'
	@touch $@

demo: $(VENV)/.stamp-demo ## the main job, end to end, in under a minute
	@$(BIN)/python examples/demo.py

# A file at a time in each process: its tests share a daemon. In the order of their names: those
# with processes come first, and the many short ones leave no core idle at the end. Two per
# processor: for a third of the time, tests wait for disks, and for time to pass.
test: $(VENV)/.stamp-dev ## the whole test suite, in two processes per processor, up to 8
	@$(BIN)/python -m pytest -n $$((2 * $$(getconf _NPROCESSORS_ONLN))) --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(ARGS)

# Only these files are read: to collect all the others takes as long again.
smoke: $(VENV)/.stamp-dev ## a living dispatcher, service and array library, in under a minute
	@$(BIN)/python -m pytest -q -m smoke -n 2 --dist loadfile $$(grep -rlE '^pytestmark = pytest\.mark\.smoke' tests) $(ARGS)

# Not a part of CI: before Python 3.12 each line that is traced costs time.
coverage: $(VENV)/.stamp-dev ## which lines and branches of the dispatcher tests/unit reaches
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q -n auto --maxprocesses 8 --dist loadfile tests/unit $(ARGS)
	@$(BIN)/coverage combine -q && $(BIN)/coverage report --precision 1

index: $(VENV)/.stamp-dev ## which test files are about which module; ARGS=registry for the names with that word
	@$(BIN)/python -m tests.module_index $(ARGS)

lint: $(VENV)/.stamp-dev ## ruff: rules and formatting; import-linter: which folder imports which
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo

types: $(VENV)/.stamp-dev ## mypy --strict
	@$(BIN)/mypy

check: lint types test ## all three; CI also compares with PyTorch

fix: $(VENV)/.stamp-dev ## reformat and apply safe fixes
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: $(VENV)/.stamp-dev $(VENV)/.stamp-bench ## dispatch in one process, registering, loading and remote calls, beside their peers
	@$(BIN)/python -m tests.bench.in_process
	@$(BIN)/python -m tests.bench.schema_kinds
	@$(BIN)/python -m tests.bench.array_library
	@$(BIN)/python -m tests.bench.array_operators
	@$(BIN)/python -m tests.bench.registration
	@$(BIN)/python -m tests.bench.library_loads
	@$(BIN)/python -m tests.bench.restarts
	@$(BIN)/python -m tests.bench.idle
	@$(BIN)/python -m tests.bench.upgrades
	@$(BIN)/python -m tests.bench.access
	@$(BIN)/python -m tests.bench.event_loop
	@OPDISPATCH_BENCH_PEERS=$(wildcard .venv-peers) $(BIN)/python -m tests.bench.data_plane
	@$(BIN)/python -m tests.bench.call_sizes
	@$(BIN)/python -m tests.bench.functions_entered
	@$(BIN)/python -m tests.bench.processor_time
	@$(BIN)/python -m tests.bench.remote
	@$(BIN)/python -m tests.bench.shared_memory
	@$(BIN)/python -m tests.bench.daemon_memory
	@$(BIN)/python -m tests.bench.scrape
	@$(BIN)/python -m tests.bench.gpu

gpu: $(VENV)/.stamp-dev $(VENV)/.stamp-cuda$(CUDA) ## the tests and the benchmark that need an NVIDIA GPU; CUDA=13 for that one
	@OPDISPATCH_REQUIRE_GPU=1 $(BIN)/python -m pytest -m gpu tests $(ARGS)
	@$(BIN)/python -m tests.bench.gpu

# Its own environment: PyTriton needs NumPy 1.
peers: ## install Ray and Triton, for `make bench` to compare with
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python $(INSTALL) 'ray>=2.40' 'nvidia-pytriton>=0.7'

installs: $(VENV)/.stamp-dev ## opdispatch beside kserve, mlserver, tritonclient and ray, in fresh environments
	@OPDISPATCH_INSTALLS=1 $(BIN)/python -m pytest -o faulthandler_timeout=1000 tests/installs $(ARGS)

# Apart from the rest, so that CI can tell "torch could not be installed" from a failure.
.venv-conformance/.torch:
	@test -x .venv-conformance/bin/python || $(PYTHON) -m venv .venv-conformance
	@echo "setting up .venv-conformance with torch and jax ..."
	@.venv-conformance/bin/python $(INSTALL) $(TORCH_OPTIONS) 'torch==2.13.0'
	@.venv-conformance/bin/python $(INSTALL) 'jax>=0.5'
	@touch $@

.venv-conformance/.stamp: pyproject.toml .venv-conformance/.torch
	@echo "setting up .venv-conformance with opdispatch[conformance] ..."
	@.venv-conformance/bin/python $(INSTALL) --editable '.[conformance]'
	@touch $@

conformance: .venv-conformance/.stamp ## a live differential run against PyTorch, from a fresh seed
	@.venv-conformance/bin/python tests/conformance/live.py $(ARGS)

stress: $(VENV)/.stamp-dev ## minutes of races: calls, loads, kills, memory, every answer checked
	@OPDISPATCH_STRESS_SECONDS=30 OPDISPATCH_STRESS_KILLS=100 $(BIN)/python -m pytest -q tests/stress
	@OPDISPATCH_ALL_FAULTS=1 $(BIN)/python -m pytest -q tests/service/test_fault_points.py
	@OPDISPATCH_STRESS_SECONDS=30 $(BIN)/python -m pytest -q tests/service/test_linearizable.py tests/service/test_calls_in_flight.py
	@OPDISPATCH_RACE_ROUNDS=200 $(BIN)/python -m pytest -q tests/service/test_load_race.py -k eight
	@$(BIN)/opdispatch stress --seconds 60 --interpreters 8 --libraries 40 --callers 16 --kill-every 2

# Its own environment: grpcio-tools 1.81.1 needs protobuf 6.
image: ## the container image, by buildah; BASE, any image with Python 3.11, and EXTRAS
	@buildah build --format docker $(if $(BASE),--build-arg BASE=$(BASE)) $(if $(EXTRAS),--build-arg EXTRAS=$(EXTRAS)) \
		$(BUILD_OPTIONS) -t opdispatch -f deploy/container/Containerfile .

protos: ## regenerate proto/opdispatch_wire/v1 from proto/opdispatch/v1
	@test -x .venv-protos/bin/python || $(PYTHON) -m venv .venv-protos
	@.venv-protos/bin/python $(INSTALL) 'grpcio-tools==1.81.1' googleapis-common-protos
	@.venv-protos/bin/python proto/generate.py

blocking: $(VENV)/.stamp-dev ## regenerate the blocking session of opdispatch_client from the asyncio one
	@$(BIN)/python client/generate_blocking.py

names: $(VENV)/.stamp-dev ## regenerate docs/public-names.md from docs/public_names.toml and the docstrings
	@$(BIN)/python docs/generate_public_names.py

clean: ## remove what the targets made
	rm -rf $(VENV) .venv-protos .venv-peers .venv-conformance .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .coverage* demo_output build dist
