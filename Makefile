# Commands for a checkout: `make test` and `make demo` work on a fresh machine with python3, make and git.
# A private RabbitMQ and Redis are started, for tests also a PostgreSQL, unless you set BROKER_URL, REDIS_URL and
# POSTGRES_URL. Tests of pages run in Chromium; set CHROMIUM to use another executable.

SHELL := /bin/sh
PYTHON ?= python3
RUN := .venv/bin/python
NEXT := .cache/next
LIBRARIES := '^(celery|kombu|amqp|billiard|vine)='
SETUP := $(PYTHON) scripts/setup.py
ARGS ?=
ONCE ?=
ONLY ?=
export ONCE
# The demo and the tests must not use the settings of another project, nor show warnings about third-party code.
unexport DJANGO_SETTINGS_MODULE PYTHONWARNDEFAULTENCODING
# The suite mostly waits, so it runs in several processes; tests chosen with ARGS run in one.
PROCESSES := -n 4 --dist loadfile --no-loadscope-reorder --durations 20
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-brokers test-versions test-celery test-next coverage chaos lint typing docs fuzz screenshots bench clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1~\2/p' Makefile | awk -F~ '{ printf "%-22s %s\n", $$1, $$2 }'

setup: ## install system packages (as root on Debian), .venv, the package and all tools
	@$(SETUP) --test-servers --group test --group demo --group lint

demo: ## run the demo project; ONCE=1 ends after one round
	@$(SETUP) --servers --group demo
	@$(RUN) -m example_django_project.demo

test: ## run the tests that are not slow, in four processes; with ARGS='-k name' for pytest, in one
	@$(SETUP) --test-servers --group test --group compatibility --group demo
	@$(RUN) -m pytest -m 'not slow' $(or $(ARGS),$(PROCESSES))

test-all: ## run all tests, then the broker tests on the other versions of RabbitMQ; with ARGS: only pytest
	@$(SETUP) --test-servers --trees --group test --group compatibility --group demo
	@$(RUN) -m pytest --hypothesis-profile full $(or $(ARGS),$(PROCESSES))
	@$(if $(ARGS),,$(RUN) scripts/test_brokers.py $(PROCESSES) --whole)

test-brokers: ## run the broker tests on the other versions of RabbitMQ: 3.10, 4.0, 4.3 (root: builds Debian trees once)
	@$(SETUP) --test-servers --trees --group test --group demo
	@$(RUN) scripts/test_brokers.py $(PROCESSES) $(ARGS)

test-versions: ## run what may differ on the other versions of Python, Django and Celery that tox.ini lists; ONLY=ENVIRONMENT: one; ARGS go to pytest
	@$(SETUP) --test-servers --group versions
	@for each in "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/*/bin; do PATH="$$PATH:$$each"; done; export PATH; \
		UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never .venv/bin/tox run $(if $(ONLY),-e $(ONLY),-m versions) $(if $(CI),--skip-missing-interpreters false) $(if $(ARGS),-- $(ARGS))

test-celery: ## run Celery's own integration suite with plain and with retryable tasks, and compare; ARGS go to pytest
	@$(SETUP) --test-servers --group test --group celery-suite
	@$(RUN) scripts/test_celery.py -- $(ARGS)

test-next: ## run unit tests, the matrix and Celery's suite with pre-releases of celery, kombu and amqp
	@VENV=$(NEXT) $(SETUP) --test-servers --group test --group celery-suite
	@$(NEXT)/bin/python -m pip install --quiet --pre --upgrade celery kombu amqp billiard vine
	@$(NEXT)/bin/python -m pip freeze | grep -E $(LIBRARIES)
	@$(NEXT)/bin/python -m pytest -m 'not slow' tests/unit tests/acceptance/test_matrix.py $(PROCESSES)
	@$(NEXT)/bin/python scripts/test_celery.py

coverage: ## measure which branches of the package 'make test' runs; ARGS=--all: all tests; other ARGS go to pytest
	@$(SETUP) --test-servers --group test --group compatibility --group demo
	@rm -f .coverage .coverage.*
	@$(RUN) -m coverage run -m pytest $(if $(filter --all,$(ARGS)),$(PROCESSES),-m 'not slow' $(or $(ARGS),$(PROCESSES)))
	@$(RUN) -m coverage combine -q
	@$(RUN) -m coverage report --skip-covered --sort=miss

chaos: ## run a system under load and faults, and account for every task; ARGS='--help' shows the options
	@$(SETUP) --test-servers --group test
	@$(RUN) -m chaos $(ARGS)

fuzz: ## many random examples of hypothesis, then atheris; ARGS='--seconds 600 --target properties' goes to atheris
	@$(SETUP) --test-servers --group test --group fuzz
	@$(RUN) -m pytest -q --hypothesis-profile=fuzz --timeout 3600 tests/unit/test_*_fuzz.py tests/django/test_hostile_fuzz.py
	@$(RUN) -m fuzz $(ARGS)

lint: ## check style, import directions, use of newer Pythons, workflows, and the pages and links of the documentation
	@$(SETUP) --group lint --group docs
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@.venv/bin/lint-imports --no-cache --no-logo
	@.venv/bin/vermin --quiet --target=3.10- --violations --no-tips --eval-annotations celery_rmq_delay example_django_project
	@.venv/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet

typing: ## check types
	@$(SETUP) --group lint --group test
	@$(RUN) -m mypy

docs: ## build the documentation into site/
	@$(SETUP) --group docs
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

screenshots: ## take the screenshots of the admin for the documentation
	@$(SETUP) --test-servers --group test --group demo
	@$(RUN) scripts/screenshots.py

bench: ## run the benchmarks; ARGS are passed on
	@$(SETUP) --servers --group benchmark
	@$(RUN) -m benchmarks $(ARGS)

clean: ## delete .venv and files left by builds and tests (the broker trees in .cache stay)
	rm -rf .venv .tox build dist site test-artifacts .pytest_cache .cache/mypy .ruff_cache .hypothesis .coverage .coverage.* spark-warehouse metastore_db derby.log *.egg-info
	find . -name __pycache__ -type d -not -path './.cache/*' -prune -exec rm -rf {} +
