# Every developer command. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# an index with CPU builds of torch saves about 3 GB of downloads where PyPI's torch is a CUDA build:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# uv installs, brought by pip; INSTALLER=pip leaves it out
INSTALLER ?= uv
SETUP := $(PYTHON) scripts/setup_env.py --installer $(INSTALLER) --venv $(VENV) $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))
export OMP_NUM_THREADS ?= 1
# one process a core, four at most; files stay together (conftest.py)
SHARED := -n logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-gpu setup-kernels setup-quality setup-aiperf demo test test-slow test-cluster mutants test-gpu bench bench-layer check check-kernels lint types imports unit fix clean

help: ## list every target
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## .venv with the CPU engine, GuideLLM and k3ctl
	@$(SETUP) cpu

setup-dev: ## setup, and what the tests need
	@$(SETUP) dev

setup-gpu: ## .venv with the CUDA engine (on a GPU host)
	@$(SETUP) gpu

setup-kernels: setup-dev ## .venv-kernels: CuTe DSL and Triton over .venv, to compile the kernels without a GPU
	@$(PYTHON) scripts/setup_env.py --installer $(INSTALLER) --venv $(VENV)-kernels --over $(VENV) kernels

setup-quality: ## .venv-quality: lm-evaluation-harness, for the quality tier of `k3ctl validate`
	@$(PYTHON) scripts/setup_env.py --installer $(INSTALLER) --venv $(VENV)-quality quality

setup-aiperf: ## .venv-aiperf: aiperf, for `k3ctl bench agentic --client aiperf`
	@$(PYTHON) scripts/setup_env.py --venv $(VENV)-aiperf aiperf

demo: setup ## serve the tiny K3, verify its path, bench it, stop: the main job end to end
	@$(BIN)/k3ctl demo

test: setup-dev ## the tests, without a GPU: units, the engine in process, a real server end to end
	@$(BIN)/python -m pytest $(SHARED) -m "not gpu and not multigpu and not slow and not cluster" $(ARGS)

test-slow: mutants setup-quality setup-aiperf ## the slow rest: engines killed, bench runs, known-bad servers, the harness, mutants
	@K3CTL_AIPERF=$(abspath $(VENV)-aiperf/bin/aiperf) $(BIN)/python -m pytest -m "slow and not gpu and not multigpu and not cluster" $(ARGS)

test-cluster: setup-dev ## four hosts on this machine (root; openssh-server, iproute2, util-linux), a real Prometheus (prometheus)
	@$(BIN)/python -m pytest -m cluster tests/cluster $(ARGS)

mutants: setup-kernels ## break the code on purpose, one edit at a time, and see the tests fail (MUTANTS="--only gate")
	@$(BIN)/python scripts/mutants.py --jobs 2 $(MUTANTS)

check: setup-dev lint types imports check-kernels test ## what CI runs

check-kernels: setup-kernels ## compile every kernel for sm_90a, sm_100a, sm_103a and audit its machine code
	@K3_REQUIRE_COMPILERS=1 $(VENV)-kernels/bin/python -m pytest -n logical --maxprocesses 8 -m compilers runtime/kernels runtime/model/providers $(ARGS)

test-gpu: ## kernel tests on a GPU host, e.g. make test-gpu OP=attn_res
	@K3_REQUIRE_GPU=1 $(PYTHON) -m pytest -o addopts=--strict-markers -m gpu $(if $(OP),runtime/kernels/$(OP),runtime/kernels runtime/model/providers) $(ARGS)

bench: ## kernel benchmark on a GPU host, e.g. make bench OP=attn_res
	@$(PYTHON) -m runtime.kernels.$(OP).bench $(ARGS)

bench-layer: ## layers of the served model on a GPU host, stock against ours: µs, kernels, floor, picture
	@$(PYTHON) scripts/gpu/bench_layer.py $(or $(OUT),bench-layer) $(ARGS)

lint: setup-dev ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup-dev ## mypy
	@$(BIN)/mypy

imports: setup-dev ## import-linter contracts
	@$(BIN)/lint-imports

unit: setup-dev ## the fast tests only
	@$(BIN)/python -m pytest $(SHARED) -m "not gpu and not multigpu and not engine and not e2e and not slow and not cluster" $(ARGS)

fix: setup-dev ## let ruff fix and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove the environment and caches
	@rm -rf $(VENV) $(VENV)-kernels $(VENV)-quality .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
