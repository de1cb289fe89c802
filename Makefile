# Everything a developer needs. What a target needs it makes: in a fresh clone `make demo` and `make test` are enough.

PYTHON ?= python3.11
VENV   ?= .venv
ARGS   ?=
# Processes that tests/unit is spread over. Tests/protocol, which mostly waits, tests/submitted and tests/spark start
# processes of their own; all of it runs at the same time, so that two cores always have something to do.
WORKERS ?= 2

# Tests start hundreds of processes: compiled modules are kept for the next one, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := $(VENV)/.installed-for-bench
VENV_AIRFLOW := .venv-airflow
AIRFLOW := $(VENV_AIRFLOW)/.installed
LINKS := build/types/epochlake
PYTEST := $(BIN)/python -m pytest
# Histories under seeded faults, from another seed each time; on a machine however slow one at least,
# and one of twenty about a theme that seeds did not draw before.
SLICE  := $(BIN)/python -m epochlake.jobs.campaign --fresh --minutes 3 --least 1 --later 0.05 --processes 1
# Tests of minutes, of which `make test` draws a third.
LONG   := tests/data/long_tests.txt
TESTS  := $(PYTEST) tests/protocol tests/submitted $(ARGS) -- $(PYTEST) --numprocesses $(WORKERS) tests/unit $(ARGS) -- $(PYTEST) tests/spark $(ARGS)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help venv demo test test-long test-unit test-connect test-airflow lint format types prove mutants under-load golden simulate campaign campaign-real campaign-mutations bench clean python java links agents-network

help: ## Show this list
	@echo "Epochlake. Prerequisites: Python 3.11, Java 17 or 21, make."
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON (python3.11), VENV (.venv), WORKERS (2 test processes; 0 to debug), ARGS (more arguments)."

venv: $(STAMP) ## Make the virtual environment; again only when setup.cfg or pyproject.toml changed

demo: java venv ## Run the main job: real data, a cluster that grows under it, a node that is lost
	@$(BIN)/epochlake demo $(ARGS)

test: java venv ## Run all checks: ruff, formatting, mypy, all tests
	@$(BIN)/python -m tests.side_by_side $(MAKE) --no-print-directory lint types -- $(SLICE) -- $(TESTS)

prove: java venv ## Run every case of every test, of which `make test` runs a slice; this takes more than an hour
	@EPOCHLAKE_TESTS_THOROUGH=1 $(BIN)/python -m tests.side_by_side $(TESTS)

test-long: java venv ## Run all of the long tests, of which `make test` draws a third
	@$(BIN)/python -m tests.side_by_side $(PYTEST) $$(grep ^tests/spark $(LONG)) $(ARGS) \
	  -- $(PYTEST) --numprocesses $(WORKERS) $$(grep ^tests/unit $(LONG)) $(ARGS)

test-unit: venv ## Run the tests that start neither a JVM nor ZooKeeper
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) tests/unit $(ARGS)

test-connect: java venv ## Run the tests of DataFrames on a Spark Connect session
	@EPOCHLAKE_TEST_SPARK=connect $(BIN)/python -m pytest -m connect $(ARGS)

test-airflow: java $(AIRFLOW) ## Run the tests of the Airflow provider, with a real Airflow in an environment of its own
	@$(VENV_AIRFLOW)/bin/python -m pytest tests/airflow $(ARGS)

lint: venv ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: venv ## Format the code and mend what ruff can mend
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

types: venv links ## Check types, across all packages
	@$(BIN)/mypy

mutants: java venv ## Break the code in each of the ways that the tests must notice, and see that they do
	@$(BIN)/python -m tests.mutants $(ARGS)

under-load: java venv ## Run what depends on timing ten times under a load of 30 (ARGS="--times 2 --load 8 -k watcher")
	@$(BIN)/python -m tests.under_load $(ARGS)

golden: venv ## Write the golden files of formats that have none yet; it never changes one that is there
	@$(BIN)/python -m tests.support.golden

simulate: java venv ## Run both simulators of the ring: 1,000 histories of each kind (ARGS="--runs 10 --seed 7" for others)
	@$(BIN)/python -m epochlake.jobs.simulate_quorums --runs 1000 $(ARGS)
	@$(BIN)/python -m epochlake.jobs.simulate_placements --runs 1000 $(ARGS)

campaign: venv ## Run histories of whole clusters under seeded faults (ARGS="--histories 1000 --first 1 --minutes 60")
	@$(BIN)/python -m epochlake.jobs.campaign $(ARGS)

campaign-real: java venv ## Play histories with real processes, servers and disks (ARGS="--histories 100 --seed 1 --kinds log,rows,spark")
	@$(BIN)/python -m tests.support.real_histories $(ARGS)

campaign-mutations: venv ## Break the code in each of the ways that histories must notice, and say after how many they do
	@$(BIN)/python -m tests.campaign_mutations $(ARGS)

agents-network: java venv ## Cut the network between twenty agents, each in a namespace; takes root (ARGS="--agents 8 --seed 7")
	@$(BIN)/python -m tests.agents_network $(ARGS)

bench: java venv $(PEERS) ## Run the benchmarks, each beside its floor or peer
	@$(BIN)/python -m benchmarks $(ARGS)

clean: ## Remove what was made here; clusters (.epochlake) stay
	@rm -rf $(VENV) $(VENV_AIRFLOW) build dist epochlake.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PEERS): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

$(AIRFLOW): setup.cfg pyproject.toml tests/airflow/versions.txt | python
	@echo "Installing Airflow into $(VENV_AIRFLOW); the first time takes some minutes."
	@$(PYTHON) -m venv $(VENV_AIRFLOW)
	@$(VENV_AIRFLOW)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --constraint tests/airflow/versions.txt --editable '.[airflow,spark]' hypothesis pytest pytest-timeout
	@touch $@

$(STAMP): setup.cfg pyproject.toml | python
	@echo "Installing into $(VENV); the first time takes some minutes."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	@touch $@

# One line each when something is missing, before anything is downloaded.
python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Epochlake needs Python 3.11, but $(PYTHON) is not there or is older: install it, or name one: make PYTHON=…" >&2; \
	  exit 1; }

java: python links
# -P: the folder `epochlake` that lies here would be found before the links, and does not lead to the others.
	@PYTHONPATH=build/types $(PYTHON) -P -m epochlake.metastore.preflight >/dev/null

# The package's name as folders: for mypy, and for what must run before the package is installed.
links:
	@mkdir -p $(LINKS)
	@for folder in placement metastore jobs; do ln -sfn ../../../$$folder $(LINKS)/$$folder; done
	@for file in __init__.py airflow.py testing.py py.typed; do ln -sfn ../../../epochlake/$$file $(LINKS)/$$file; done
