# Everything from an empty machine to the answer: `make demo`, `make test`. Type `make` for help.
#
# The environment is made in three steps, each remembered by a stamp file: the interpreter, torch, and
# this package as an editable install with what its demo and tests import. The last is repeated when a
# C++ source, a CMake file or pyproject.toml has changed; Python sources are used where they stand.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
ENV ?= venv
TORCH ?= 2.13.0
TORCH_INDEX ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
WORKERS ?= $(JOBS)
ARGS ?=
VLLM ?=
ENVIRONMENTS ?= $(PY)

ifeq ($(ENV),current)
PY := $(PYTHON)
STAMPS := build/stamps$(subst /,-,$(shell command -v $(PYTHON)))
else
PY := $(VENV)/bin/python
STAMPS := $(VENV)/dspark-stamps
endif
PIP := $(PY) -m pip --disable-pip-version-check
SOURCES := CMakeLists.txt pyproject.toml $(shell find csrc cmake hip -not -name '*.md')
BUILD_TOOLS := 'cmake>=3.24' 'ninja>=1.11' 'pybind11>=2.12' 'scikit-build-core>=0.11'
FORMATTED := $(shell find csrc hip -name '*.cpp' -o -name '*.h' -o -name '*.cu')

.PHONY: help
help:
	@echo "make demo       answer three prompts with and without DSpark, print the table"
	@echo "make generate, chat, serve, doctor   these commands of dspark-ext (docs/command-line.md)"
	@echo "make test       the test suite            make test-all   and the slow tests"
	@echo "make wheel-check  sdist and wheels, tried in ENVIRONMENTS=<interpreters with a torch>"
	@echo "make fuzz       the CPU kernels under libFuzzer and sanitizers (needs clang), 10^6 calls of all"
	@echo "make bench      the benchmarks, results and a report in bench/results/"
	@echo "make gpu-check  everything on this machine's GPU, results in build/gpu-check.md"
	@echo "make vllm-test  the plugin inside a real vLLM, VLLM=<interpreter that has it>"
	@echo "make env        only the environment and the build"
	@echo "make lint       formatters, read-only     make format     formatters, writing"
	@echo "make clean      remove the environment and the build"
	@echo
	@echo "Variables (NAME=value after the target; docs/install.md):"
	@echo "  PYTHON=$(PYTHON)      interpreter, >= 3.10"
	@echo "  VENV=$(VENV)          virtual environment, made if missing; ENV=current uses PYTHON itself"
	@echo "  TORCH=$(TORCH)       torch to install; a torch >= 2.10 already there stays unless TORCH is given"
	@echo "  TORCH_INDEX=<url>   package index for torch alone, e.g. one of CPU builds"
	@echo "  JOBS=$(JOBS)              parallel compiler processes; WORKERS=$(WORKERS)  parallel test processes"
	@echo "  VLLM=<path>           interpreter of make vllm-test (docs/integrations.md)"
	@echo "  ARGS=...            further arguments of pytest, the demo or the benchmarks"

$(STAMPS)/python:
	@tools/check_system.sh $(PYTHON)
ifneq ($(ENV),current)
	@test -x $(PY) || { echo "== creating $(VENV)" && $(PYTHON) -m venv $(VENV); }
endif
	@mkdir -p $(@D) && touch $@

# The version is part of the name, so that another TORCH is installed when it is asked for.
$(STAMPS)/torch-$(TORCH): $(STAMPS)/python
	@found=$$($(PY) -c 'import torch; print(torch.__version__)' 2>/dev/null || echo none); \
	if [ "$(origin TORCH)" = file ] && [ $$found != none ] \
	    && [ "$$(printf '%s\n' 2.10 $$found | sort -V | head -1)" = 2.10 ]; then \
	    echo "== using torch $$found of the environment"; \
	elif [ "$${found%+*}" != "$(TORCH)" ]; then \
	    echo "== installing torch $(TORCH) (CPU builds are about 200 MB; where the package index serves"; \
	    echo "   a CUDA build of several GB, stop and pass TORCH_INDEX=<url of the CPU builds>)"; \
	    $(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$(TORCH); \
	fi
	@touch $@

$(STAMPS)/package: $(STAMPS)/torch-$(TORCH) $(SOURCES)
	@mkdir -p build
	@echo "== installing build tools" && $(PIP) install -q $(BUILD_TOOLS)
	@echo "== compiling and installing dspark_ext (a minute or two; log: build/install.log)"
	@PATH="$(dir $(shell command -v $(PY) || echo $(PY))):$$PATH" \
	SKBUILD_BUILD_DIR='build/{wheel_tag}' CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) \
	$(PIP) install -v --no-build-isolation -e '.[demo,test]' 2>&1 | tee build/install.log \
	    | sed -un '/^ *\[[0-9]*\/[0-9]*\]/p; /^ *Downloading /p; /rror[: ]/p; /^Successfully/p' \
	    || { tail -n 30 build/install.log; exit 1; }
	@touch $@

.PHONY: env demo generate chat serve doctor test test-all wheel-check fuzz vllm-test bench gpu-check
env: $(STAMPS)/package

demo: env
	@$(PY) -m dspark_ext.demo $(ARGS)

generate chat serve doctor: env
	@$(PY) -m dspark_ext_command $@ $(ARGS)

# Files go to whichever process is free; each process has one thread (tests/conftest.py).
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadfile

test: env
	@$(PYTEST) $(ARGS)

test-all: env
	@$(PYTEST) -m "slow or not slow" $(ARGS)

wheel-check: env
	@$(PY) tools/check_wheel.py $(ENVIRONMENTS) $(ARGS)

fuzz: env
	@$(PY) tests/fuzz/libfuzzer.py
	@$(PY) tests/fuzz/run.py $(ARGS)

vllm-test: env
	@test -n "$(VLLM)" || { echo "give VLLM=<interpreter that has vLLM>: docs/integrations.md"; exit 2; }
	@DSPARK_VLLM_PYTHON=$(VLLM) $(PY) -m pytest tests/integrations/test_vllm_engine.py $(ARGS)

# Results in bench/results/<family>.json, with --grow in <family>_growth.json; then the report. ARGS
# goes to the files that measure operators by bench/harness.py.
bench: env
	@for file in bench/bench_*.py; do \
	    name=$${file#bench/bench_}; name=$${name%.py}; \
	    grep -q 'harness.main(' $$file && args='$(ARGS)' || args=; \
	    echo "== $$file" && $(PY) $$file --json bench/results/$$name.json $$args || exit 1; done
	@for pair in sampling:B,K,V draft:B,V dispatch:T,E moe:T,E verify:B,K confidence:B,K attention:L,B \
	    linear:M; do name=$${pair%:*}; echo "== $$name over $${pair#*:}"; \
	    $(PY) bench/bench_$$name.py --grow $${pair#*:} --json bench/results/$${name}_growth.json \
	        $(ARGS) || exit 1; done
	@$(PY) bench/report.py bench/results/*.json --out bench/results/report
	@$(PY) bench/machines.py --check bench/results/*.json --markdown bench/results/machines_check.md

# Looks for a GPU before it makes the environment.
gpu-check:
	@$(PYTHON) tools/gpu_check.py --detect
	@$(MAKE) --no-print-directory env
	@$(PY) tools/gpu_check.py $(ARGS)

$(STAMPS)/lint: pyproject.toml $(STAMPS)/torch-$(TORCH)
	@$(PIP) install -q 'clang-format==23.1.5' 'codespell>=2.3' 'ruff==0.17.6' && touch $@

.PHONY: lint format clean
lint: $(STAMPS)/lint
	$(PY) -m ruff check . && $(PY) -m ruff format --check .
	$(PY) -m codespell_lib
	$(dir $(PY))clang-format --dry-run --Werror $(FORMATTED)

format: $(STAMPS)/lint
	$(PY) -m ruff check --fix . ; $(PY) -m ruff format .
	$(dir $(PY))clang-format -i $(FORMATTED)

clean:
	rm -rf build .venv .pytest_cache .ruff_cache
	find python -name '*.so' -delete
