# eagle3lab. `make help` lists what there is; every target makes the environment first where it needs one.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
SGLANG_VENV := .venv-sglang
SGLANG_LOCK := sglang_cpu/requirements.lock
VLLM_VENV := .venv-vllm
VLLM_LOCK := vllm_cpu/requirements.lock
PORT := 30000# of the server that `make serve-cpu` starts
PYTHONS := python3.11 python3.12 python3.13 python3
PYTHON :=# a Python to make environments with, found by itself when empty
# The stamps carry the checksum of the file they stand for: a new content makes them anew, a new date does not.
checksum = $(firstword $(shell cksum < $(1)))
VENV_STAMP := $(VENV)/installed-$(call checksum,requirements.lock)
LAB_STAMP := $(VENV)/eagle3lab-$(call checksum,pyproject.toml)
SGLANG_STAMP := $(SGLANG_VENV)/installed-$(call checksum,$(SGLANG_LOCK))
VLLM_STAMP := $(VLLM_VENV)/installed-$(call checksum,$(VLLM_LOCK))
PIP := -m pip --disable-pip-version-check --no-input $(if $(CI),--quiet)
# Many small tensors on few cores: one thread is faster in tests. Everything else uses all cores.
ONE_THREAD := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1}
WORKERS := 2# processes that `make test` runs tests in; each may have a server of 3 GB
FAST := not notebooks and not sglang and not vllm and not slow

.PHONY: help env sglang-env vllm-env demo smoke lab serve-cpu browser test test-fast bench recipes lint hooks clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(LAB_STAMP) ## the environment .venv from requirements.lock (made anew when the lock changes)

sglang-env: $(SGLANG_STAMP) ## the environment .venv-sglang of real SGLang servers on CPUs, likewise

vllm-env: $(VLLM_STAMP) ## the environment .venv-vllm of real vLLM servers on CPUs, likewise (3.4 GB)

demo: env ## the whole pipeline on a real model and real prompts, on this machine's CPU
	$(BIN)/python -m eagle3lab run demo

smoke: env ## the same nine notebooks on a tiny model, in minutes
	$(BIN)/python -m eagle3lab run smoke

lab: env ## the notebooks in JupyterLab, on this machine only
	$(BIN)/jupyter lab --ip=127.0.0.1 --notebook-dir=. $(if $(filter 0,$(shell id -u)),--allow-root)

serve-cpu: env sglang-env ## a real SGLang server of SmolLM2 on this machine's CPU (PORT=30000, stop it with Ctrl-C)
	$(BIN)/python -m eagle3lab.engines.sglang.serve_cpu --port $(PORT)

browser: ## Chromium for the test of the notebooks in JupyterLab, where it is missing and root can install it by apt
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo "Chromium could not be installed: the test in a browser will be skipped." >&2

test: ## the linter and every test
	@# side by side: each environment is minutes of unpacking, on one core
	@$(MAKE) --no-print-directory --jobs env sglang-env $(if $(filter x86_64,$(shell uname -m)),vllm-env) browser lint
	$(ONE_THREAD) $(BIN)/python -m pytest --numprocesses $(WORKERS) --no-loadscope-reorder

test-fast: env ## the tests that need neither notebooks nor a server
	$(ONE_THREAD) $(BIN)/python -m pytest -m "$(FAST)"

bench: env sglang-env ## one table of ratios against baselines of the same run (after `make demo`; half an hour, 3 GB)
	$(BIN)/python -m benchmarks

recipes: env ## the study of training recipes on 2,000 answers (many hours; results in runs/recipes)
	$(BIN)/python -m eagle3lab run smollm2 --to inference
	$(BIN)/python -m benchmarks.recipes $$(ls -t runs/smollm2-inference-*/corpus.parquet | head -1) --work runs/recipes

lint: env ## ruff over code, tests and notebooks; the form of the code too
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

hooks: env ## ruff and notebook stripping before every commit
	$(BIN)/pre-commit install

clean: ## remove caches and build leftovers (.venv and runs/ stay)
	rm -rf .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -path './.venv*' -prune -o -path ./runs -prune -o \
	  \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -exec rm -rf {} +

# $(call new_venv,folder,lock): an environment with exactly the packages of a lock. Compiled on all cores: where Python
# writes no bytecode, as in many containers, every kernel would spend 5 s on it, a server's three processes 45 s. A file
# that does not compile is one of a package's, for another Python.
define new_venv
	@set -e; python="$(PYTHON)"; \
	for candidate in $(PYTHONS); do \
	  if [ -z "$$python" ] && "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	    2>/dev/null; then python="$$candidate"; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "No Python 3.11, 3.12 or 3.13 found. Install one, or name it: make env PYTHON=path/to/python" >&2; exit 1; \
	fi; \
	echo "Making $(1) with $$python: a few minutes and a few GB, once."; \
	"$$python" -m venv --clear $(1)
	$(1)/bin/python $(PIP) install --no-deps --no-compile -r $(2)  # the lock is complete: nothing to resolve
	@$(1)/bin/python -m compileall -qq -j 0 $(1) || true
	@touch $@
endef

$(VENV_STAMP):
	$(call new_venv,$(VENV),requirements.lock)

$(SGLANG_STAMP):
	$(call new_venv,$(SGLANG_VENV),$(SGLANG_LOCK))

$(VLLM_STAMP):
	$(call new_venv,$(VLLM_VENV),$(VLLM_LOCK))

$(LAB_STAMP): $(VENV_STAMP)
	$(BIN)/python $(PIP) install --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/eagle3lab-*; touch $@
