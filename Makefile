# Every developer command. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# an index with CPU builds of torch saves about 3 GB of downloads where PyPI's torch is a CUDA build:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
SETUP := $(PYTHON) scripts/setup_env.py --venv $(VENV) $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-gpu demo test check lint types imports unit fix clean

help: ## list every target
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## .venv with the CPU engine, GuideLLM and k3ctl
	@$(SETUP) cpu

setup-dev: ## setup, and what the tests need
	@$(SETUP) dev

setup-gpu: ## .venv with the CUDA engine (on a GPU host)
	@$(SETUP) gpu

demo: setup ## serve the tiny K3, verify its path, bench it, stop: the main job end to end
	@$(BIN)/k3ctl demo

test: setup-dev ## every test that runs without a GPU
	@$(BIN)/python -m pytest -m "not gpu and not multigpu" $(ARGS)

check: setup-dev lint types imports test ## what CI runs

lint: setup-dev ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup-dev ## mypy
	@$(BIN)/mypy

imports: setup-dev ## import-linter contracts
	@$(BIN)/lint-imports

unit: setup-dev ## the fast tests only
	@$(BIN)/python -m pytest -m "not gpu and not multigpu and not engine and not e2e and not slow" $(ARGS)

fix: setup-dev ## let ruff fix and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove the environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
