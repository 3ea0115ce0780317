# Everything a checkout needs: `make test` and `make demo` work on a fresh machine with python3, make and git.
# Servers: a private RabbitMQ and Redis are started, unless BROKER_URL and REDIS_URL name others.

SHELL := /bin/sh
PYTHON ?= python3
RUN := .venv/bin/python
SETUP := $(PYTHON) scripts/setup.py
ARGS ?=
ONCE ?=
export ONCE
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-brokers lint typing docs bench clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1~\2/p' Makefile | awk -F~ '{ printf "%-22s %s\n", $$1, $$2 }'

setup: ## install system packages (as root on Debian), .venv, the package and all tools
	@$(SETUP) --servers --group test --group demo --group lint

demo: ## run the demo project; ONCE=1 ends after one round
	@$(SETUP) --servers --group demo
	@$(RUN) -m example_django_project.demo

test: ## run the whole test suite; ARGS='-k name' goes to pytest
	@$(SETUP) --servers --group test --group demo
	@$(RUN) -m pytest $(ARGS)

test-brokers: ## run the broker tests on RabbitMQ 3.10, 4.0 and 4.3 (root: builds Debian trees once)
	@$(SETUP) --servers --trees --group test --group demo
	@$(RUN) scripts/test_brokers.py $(ARGS)

lint: ## check style and formatting
	@$(SETUP) --group lint
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

typing: ## check types
	@$(SETUP) --group lint --group test
	@$(RUN) -m mypy

docs: ## build the documentation into site/
	@$(SETUP) --group docs
	@$(RUN) -m mkdocs build --strict

bench: ## run the benchmarks; ARGS goes to them
	@$(SETUP) --servers --group benchmark
	@$(RUN) -m benchmarks $(ARGS)

clean: ## delete .venv and what builds and tests left (the broker trees in .cache stay)
	rm -rf .venv build dist site test-artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -not -path './.cache/*' -prune -exec rm -rf {} +
