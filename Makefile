# Everything a checkout needs: `make test` and `make demo` work on a fresh machine with python3, make and git.
# Servers: a private RabbitMQ and Redis are started, for tests a PostgreSQL, too, unless BROKER_URL, REDIS_URL and
# POSTGRES_URL name others. Tests of pages run in Chromium; CHROMIUM names another program of it.

SHELL := /bin/sh
PYTHON ?= python3
RUN := .venv/bin/python
SETUP := $(PYTHON) scripts/setup.py
ARGS ?=
ONCE ?=
export ONCE
# The whole suite mostly waits, so that some processes share it; what is chosen with ARGS runs in one.
PARALLEL := $(if $(ARGS),,-n 3 --dist loadfile --no-loadscope-reorder)
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-brokers chaos lint typing docs fuzz screenshots bench clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1~\2/p' Makefile | awk -F~ '{ printf "%-22s %s\n", $$1, $$2 }'

setup: ## install system packages (as root on Debian), .venv, the package and all tools
	@$(SETUP) --test-servers --group test --group demo --group lint

demo: ## run the demo project; ONCE=1 ends after one round
	@$(SETUP) --servers --group demo
	@$(RUN) -m example_django_project.demo

test: ## run the whole test suite in three processes; ARGS='-k name' goes to pytest, in one
	@$(SETUP) --test-servers --group test --group demo
	@$(RUN) -m pytest $(PARALLEL) $(ARGS)

test-brokers: ## run what may differ on RabbitMQ 3.10, 4.0 and 4.3 (root: builds Debian trees once); ARGS=--whole: all of it
	@$(SETUP) --test-servers --trees --group test --group demo
	@$(RUN) scripts/test_brokers.py $(ARGS)

chaos: ## run a system under load and faults, and prove what became of every task; ARGS='--help' has the options
	@$(SETUP) --test-servers --group test
	@$(RUN) -m tests.chaos $(ARGS)

fuzz: ## many random examples of hypothesis, then atheris; ARGS='--seconds 600 --target properties' goes to atheris
	@$(SETUP) --test-servers --group test --group fuzz
	@$(RUN) -m pytest -q --hypothesis-profile=fuzz --timeout 3600 tests/unit/test_*_fuzz.py tests/django/test_hostile_fuzz.py
	@$(RUN) -m fuzz $(ARGS)

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

screenshots: ## take the documentation's pictures of the admin
	@$(SETUP) --test-servers --group test --group demo
	@$(RUN) scripts/screenshots.py

bench: ## run the benchmarks; ARGS goes to them
	@$(SETUP) --servers --group benchmark
	@$(RUN) -m benchmarks $(ARGS)

clean: ## delete .venv and what builds and tests left (the broker trees in .cache stay)
	rm -rf .venv build dist site test-artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log *.egg-info
	find . -name __pycache__ -type d -not -path './.cache/*' -prune -exec rm -rf {} +
