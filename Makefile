PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -n 2

.PHONY: demo test test-models lint bench soak clean

demo: $(VENV)/.runtime  ## replay the bundled sample trace
	$(BIN)/kvstead replay src/kvstead/replay/samples/chat.jsonl.gz --model llama-3.1-8b --memory 4GiB --gpu h100-sxm

test: lint  ## everything CI runs, but for test-models
	$(BIN)/python -m coverage erase
	$(PYTEST) --cov --cov-report= --cov-fail-under=0
	NUMBA_DISABLE_JIT=1 $(PYTEST) --cov --cov-append --cov-report= --cov-fail-under=0 tests/kernels
	$(BIN)/python -m coverage report

test-models: $(STAMP)  ## every model family of transformers on every use of memory, about three minutes
	KVSTEAD_MODELS=1 $(BIN)/python -m pytest -m models tests/integrations

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## measure beside the peers, write benchmarks/results/
	$(BIN)/python benchmarks/run.py

soak: $(STAMP)  ## long fuzz runs, ten minutes at most
	KVSTEAD_SOAK=1 timeout 600 $(PYTEST) -m soak

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: constraints.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(STAMP): constraints.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.runtime

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .coverage*
