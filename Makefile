PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup setup-all demo test test-slow lint types bench mutants docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)

setup-all: setup
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev,cluster,onnx,loops]"

demo: setup
	$(BIN)/probmargin demo

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -q -n 2 -m "not slow and not gpu"

test-slow: setup
	$(BIN)/pytest -q -n 2 -m "slow and not gpu"

mutants: setup
	$(BIN)/python tests/mutants/run.py

bench: setup
	$(BIN)/python -m benchmarks $(RUN)

docs: setup
	$(BIN)/python docs/errors.py
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) build dist site
