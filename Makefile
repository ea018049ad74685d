# `make demo` and `make test` set up everything they need in .venv; nothing else is required but Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Add `browser` to test the page in Chromium: make EXTRAS=test,browser test
EXTRAS ?= test
STAMP := $(VENV)/.installed
# One process per core, each with one thread: more of either and they wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

# Torch is not compiled when it is installed (see below) but by the first process that imports it, for all others:
# tests start hundreds of processes, and without its bytecode each of them takes seconds longer.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test slow sweep fuzz lint docs bench gpu matrix oldest personalities changelog clean

# One sentence instead of a traceback from pip or a half-made environment.
OLD := $(shell $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || echo old)
needs_python = $(if $(OLD),$(error driftscope needs Python 3.11 or newer and '$(PYTHON)' is not: make PYTHON=python3.12 $@))

$(STAMP): pyproject.toml constraints.txt
	$(needs_python)
	$(PYTHON) -m venv $(VENV)
	# --no-compile: byte-compiling torch and sympy is most of an installation's time.
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[$(EXTRAS)]'
	touch $(STAMP)

demo: $(STAMP)
	mkdir -p out
	$(BIN)/driftscope demo -o out/demo.html

test: $(STAMP)
	$(PYTEST)

slow: $(STAMP)
	$(PYTEST) -m "slow and not sweep"

# Whole catalogues and grids of which the slow tests take a part: an hour on two cores.
sweep: $(STAMP)
	$(PYTEST) -m sweep

# Damaged and dangerous files of every kind a stranger may hand over; docs/explanation/security.md has the figures.
CASES ?= 10000
fuzz: $(STAMP)
	DRIFTSCOPE_FUZZ=$(CASES) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -s -m slow tests/hostile/test_fuzz.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	! $(BIN)/vulture | grep '^src/'

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[docs]'
	touch $@

docs: $(VENV)/.docs
	$(BIN)/python docs/build.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Everything that needs an accelerator, in less than eight minutes; without one it says so.
gpu: $(STAMP)
	$(BIN)/python -m benchmarks.accelerator

# The fragments of changelog.d become the next version's part of CHANGELOG.md.
NEXT ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
changelog: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt towncrier
	$(BIN)/towncrier build --yes --version $(NEXT)

# One environment of constraints/, made and tested: make matrix VERSION=torch2.8
VERSION ?= newest
matrix:
	$(needs_python)
	$(PYTHON) docs/compatibility.py run $(VERSION)

# What reads, runs and lifts files, and what is numbers alone, in the environment that is here with the
# oldest numpy, onnx and onnxruntime: two minutes.
oldest: $(STAMP)
	$(BIN)/python docs/compatibility.py beside oldest

# The quick tests as on older processors, with 1, 2 and 4 threads, twice each in an order drawn anew: hours.
personalities: $(STAMP)
	$(BIN)/python docs/personalities.py
	$(BIN)/python docs/compatibility.py table

clean:
	rm -rf $(VENV) .venv-* out build docs/_build docs/auto_gallery
