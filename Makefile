# `make demo` and `make test` set up everything they need in .venv; nothing else is required but Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Add `browser` to test the page in Chromium: make EXTRAS=test,browser test
EXTRAS ?= test
STAMP := $(VENV)/.installed
# One process per core, each with one thread: more of either and they wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

.PHONY: demo test slow lint docs bench clean

$(STAMP): pyproject.toml constraints.txt
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
	$(PYTEST) -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[docs]'
	touch $@

docs: $(VENV)/.docs
	$(BIN)/python docs/build.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) out build docs/_build docs/auto_gallery
