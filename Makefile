# `make` lists the targets. Each makes what it needs: .venv is built on first use and kept (see .ci/setup_env.sh).
PYTHON ?= python3
ARGS ?=
WORKERS ?= 2
ENV := .venv/.installed
# The floors whose types are checked: data, engines and all below (tests/test_architecture.py has the whole order).
TYPED := $(addprefix grpo_lightning/,types.py errors.py ranks.py token_means.py functional advantages objectives rewards data engines)

.PHONY: help setup quickstart experiments test long lint format clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo "Variables: PYTHON=python3.12 (3.11 or newer), ARGS='-k kl' (passed to pytest), WORKERS=0 (tests in one process)"

$(ENV): pyproject.toml .ci/setup_env.sh
	@PYTHON='$(PYTHON)' sh .ci/setup_env.sh

setup: $(ENV) ## make .venv and install everything

quickstart: $(ENV) ## train a tiny model with GRPO on this machine
	.venv/bin/python -m experiments.quickstart.run

experiments: $(ENV) ## run all experiments again (hours; goes on where it was stopped)
	.venv/bin/python -m experiments $(ARGS)

test: $(ENV) ## run the whole test suite, unit tests first
	.venv/bin/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

long: $(ENV) ## endurance tests (half an hour); experiments/endurance/results.json is their record
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest tests/long $(ARGS)

lint: $(ENV) ## check style and types
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy --follow-imports=silent $(TYPED)

format: $(ENV) ## rewrite files in the project's style
	.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .

clean: ## remove .venv and the tools' caches; runs/ stays
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
