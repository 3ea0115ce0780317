# Everything a checkout needs: `make test` and `make demo` work on a fresh machine with python3, make and git.
# Servers: a private RabbitMQ and Redis are started, for tests a PostgreSQL, too, unless BROKER_URL, REDIS_URL and
# POSTGRES_URL name others. Tests of pages run in Chromium; CHROMIUM names another program of it.

SHELL := /bin/sh
PYTHON ?= python3
RUN := .venv/bin/python
NEXT := .cache/next
OLDEST := .cache/oldest
LIBRARIES := '^(celery|kombu|amqp|billiard|vine)='
SETUP := $(PYTHON) scripts/setup.py
ARGS ?=
ONCE ?=
export ONCE
# Another project's settings are not for the demo and the tests, nor is what makes warnings of other people's code.
unexport DJANGO_SETTINGS_MODULE PYTHONWARNDEFAULTENCODING
# The suite mostly waits, so that some processes share it; what is chosen with ARGS runs in one.
PROCESSES := -n 4 --dist loadfile --no-loadscope-reorder
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-brokers test-celery test-oldest test-next coverage chaos lint typing docs fuzz screenshots bench clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1~\2/p' Makefile | awk -F~ '{ printf "%-22s %s\n", $$1, $$2 }'

setup: ## install system packages (as root on Debian), .venv, the package and all tools
	@$(SETUP) --test-servers --group test --group demo --group lint

demo: ## run the demo project; ONCE=1 ends after one round
	@$(SETUP) --servers --group demo
	@$(RUN) -m example_django_project.demo

test: ## run the tests that find a defect quickly, in four processes; with ARGS='-k name' for pytest, in one
	@$(SETUP) --test-servers --group test --group demo
	@$(RUN) -m pytest -m 'not slow' $(or $(ARGS),$(PROCESSES))

test-all: ## run all tests, then what concerns the broker on the other versions of RabbitMQ; with ARGS: only pytest
	@$(SETUP) --test-servers --trees --group test --group demo
	@$(RUN) -m pytest --hypothesis-profile full $(or $(ARGS),$(PROCESSES))
	@$(if $(ARGS),,$(RUN) scripts/test_brokers.py $(PROCESSES) --whole)

test-brokers: ## run what may differ on the other versions of RabbitMQ: 3.10, 4.0, 4.3 (root: builds Debian trees once)
	@$(SETUP) --test-servers --trees --group test --group demo
	@$(RUN) scripts/test_brokers.py $(PROCESSES) $(ARGS)

test-celery: ## run Celery's own integration suite with plain and with retryable tasks, and compare; ARGS go to pytest
	@$(SETUP) --test-servers --group test --group celery-suite
	@$(RUN) scripts/test_celery.py -- $(ARGS)

test-oldest: ## run unit and acceptance tests with the oldest celery, kombu, billiard and amqp that are promised
	@VENV=$(OLDEST) $(SETUP) --test-servers --group test
	@$(OLDEST)/bin/python -c "from celery_rmq_delay.worker.hooks import TRIED; print(*(f'{name}=={each[0]}' for name, each in TRIED.items()))" \
		| xargs $(OLDEST)/bin/python -m pip install --quiet 'celery[redis]'
	@$(OLDEST)/bin/python -m pip freeze | grep -E $(LIBRARIES)
	@$(OLDEST)/bin/python -m pytest -m 'not slow' $(or $(ARGS),tests/unit tests/acceptance $(PROCESSES))

test-next: ## run unit tests, the matrix and Celery's suite with pre-releases of celery, kombu and amqp
	@VENV=$(NEXT) $(SETUP) --test-servers --group test --group celery-suite
	@$(NEXT)/bin/python -m pip install --quiet --pre --upgrade celery kombu amqp billiard vine
	@$(NEXT)/bin/python -m pip freeze | grep -E $(LIBRARIES)
	@$(NEXT)/bin/python -m pytest -m 'not slow' tests/unit tests/acceptance/test_matrix.py $(PROCESSES)
	@$(NEXT)/bin/python scripts/test_celery.py

coverage: ## measure which branches of the package 'make test' runs; ARGS=--all: all tests; other ARGS go to pytest
	@$(SETUP) --test-servers --group test --group demo
	@rm -f .coverage .coverage.*
	@$(RUN) -m coverage run -m pytest $(if $(filter --all,$(ARGS)),$(PROCESSES),-m 'not slow' $(or $(ARGS),$(PROCESSES)))
	@$(RUN) -m coverage combine -q
	@$(RUN) -m coverage report --skip-covered --sort=miss

chaos: ## run a system under load and faults, and prove what became of every task; ARGS='--help' has the options
	@$(SETUP) --test-servers --group test
	@$(RUN) -m chaos $(ARGS)

fuzz: ## many random examples of hypothesis, then atheris; ARGS='--seconds 600 --target properties' goes to atheris
	@$(SETUP) --test-servers --group test --group fuzz
	@$(RUN) -m pytest -q --hypothesis-profile=fuzz --timeout 3600 tests/unit/test_*_fuzz.py tests/django/test_hostile_fuzz.py
	@$(RUN) -m fuzz $(ARGS)

lint: ## check style, formatting, and what may import what
	@$(SETUP) --group lint
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@.venv/bin/lint-imports --no-cache --no-logo
	@$(RUN) scripts/house.py --check

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
	rm -rf .venv build dist site test-artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* spark-warehouse metastore_db derby.log *.egg-info
	find . -name __pycache__ -type d -not -path './.cache/*' -prune -exec rm -rf {} +
