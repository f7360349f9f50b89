# Everything a contributor runs. `make` alone lists it.

.DEFAULT_GOAL := help
.PHONY: help setup demo test matrix hosts faults releases smoke unit lint format clean \
	distclean

BIN := .venv/bin

# More for pytest, e.g.: make unit PYTEST_ARGS='-k budget -x'
PYTEST_ARGS ?=

# For each real vLLM that a test or the demonstration starts: no hub, no usage report,
# and a KV cache of 1 GiB, so that several fit on a laptop.
export HF_HUB_OFFLINE := 1
export VLLM_NO_USAGE_STATS := 1
export VLLM_CPU_KVCACHE_SPACE ?= 1

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' \
		$(firstword $(MAKEFILE_LIST))

setup: ## make .venv with a vLLM in it (minutes once, then nothing to do)
	@.ci/setup

demo: setup ## stop a real vLLM under load, in order, and see what happens
	@$(BIN)/python -m vllm_ashutdown.demo

test: lint ## lint, then the tests, real vLLM included (matrix and hosts are left out)
	@$(BIN)/python -m pytest tests -m 'not matrix and not hosts' $(PYTEST_ARGS)

matrix: setup ## the other topologies and kinds, on real vLLM (half an hour)
	@INTERRUPTS=20 $(BIN)/python -m pytest tests -m 'matrix and not hosts' $(PYTEST_ARGS)

hosts: setup ## engines in Jupyter and in Ray, which it installs first (minutes)
	@.ci/hosts
	@$(BIN)/python -m pytest tests -m hosts $(PYTEST_ARGS)

faults: setup ## random faults to real servers, judged (FAULTS='--runs 60 --seed 1')
	@$(BIN)/python benchmarks/faults.py $(FAULTS)

releases: setup ## every seam against the sources of every supported vLLM (a minute)
	@$(BIN)/python benchmarks/releases.py $(RELEASES)

smoke: setup ## a real server of every installable vLLM, stopped (SMOKE='--releases 0.31.0')
	@$(BIN)/python benchmarks/smoke.py $(SMOKE)

unit: setup ## the tests that start no vLLM (seconds)
	@$(BIN)/python -m pytest tests -m 'not real' $(PYTEST_ARGS)

lint: setup ## ruff and mypy; changes nothing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove caches and build results
	@rm -rf build dist vllm/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -path ./.venv -prune -o -type d -name __pycache__ -exec rm -rf {} +

distclean: clean ## the same, and .venv
	@rm -rf .venv
