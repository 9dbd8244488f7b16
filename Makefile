# Two commands do all the set-up: `make chat` and `make test`. Everything lands in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

OLDEST := .venv-oldest

.PHONY: help chat test test-oldest test-torch test-slow check format models bench clean

help:
	@echo "make chat       set up, and chat with the embedded model, accelerated"
	@echo "make test       set up, and run the tests"
	@echo "make test-slow  the slow tests too: the embedded model, many prompts, older transformers"
	@echo "make test-oldest  the exactness matrix on the oldest transformers that is supported"
	@echo "make test-torch TORCH=2.9.1  the same on another release of torch (gigabytes, where it comes with CUDA)"
	@echo "make check      linters, types and import contracts"
	@echo "make models     run a tiny model of every type, and write docs/models.md"
	@echo "make bench      measure on the project's own small prompts"

# The lock file names every package that is needed, so no requirement is followed: that keeps the
# native runtime out that the embedded model's package asks for. The third line brings what a torch
# build with CUDA needs besides, and does nothing for a CPU build.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lookahead needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@echo "Setting up .venv (once; torch alone is 200 MB) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --constraint requirements.lock torch
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'import ngram_pool; ngram_pool.warm_up(block=True)'
	@touch $@

# A second environment, which differs in a few packages only.
$(OLDEST)/.ready: requirements.lock requirements-oldest.lock pyproject.toml
	@echo "Setting up $(OLDEST) (once) ..."
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --requirement requirements.lock
	$(OLDEST)/bin/python -m pip install --quiet --constraint requirements.lock torch
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --requirement requirements-oldest.lock
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# A third one: the lock file's packages with another torch.
TORCH ?= 2.9.1
OTHER := .venv-torch-$(TORCH)
$(OTHER)/.ready: requirements.lock pyproject.toml
	@echo "Setting up $(OTHER) (once) ..."
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install --quiet torch==$(TORCH)
	grep -v '^torch==' requirements.lock > $(OTHER)/requirements.txt
	$(OTHER)/bin/python -m pip install --quiet --no-deps --requirement $(OTHER)/requirements.txt
	$(OTHER)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

chat: $(READY)
	@$(BIN)/lookahead chat

# A process for each core, each with one thread of torch; a process takes up to 2 GB. One that has
# nothing left takes tests from the others, some of which need minutes.
WORKERS := --numprocesses logical --maxprocesses 4 --dist worksteal

test: $(READY)
	$(BIN)/python -m pytest $(WORKERS)

test-oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/python -m pytest $(WORKERS) tests/equivalence tests/cases tests/hf

test-torch: $(OTHER)/.ready
	$(OTHER)/bin/python -m pytest $(WORKERS) tests/equivalence tests/cases tests/hf

test-slow: $(READY) test-oldest
	$(BIN)/python -m pytest $(WORKERS) -m "slow or not slow"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

models: $(READY)
	$(BIN)/python -m tests.zoo.table

bench: $(READY)
	$(BIN)/lookahead bench

clean:
	rm -rf $(VENV) $(OLDEST) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
