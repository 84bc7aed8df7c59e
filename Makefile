# Every target, with its comment, is listed by `make help`.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.setup-done
EXTRAS  := server,spark,dev
WORKERS ?= 2
MINUTES ?= 60
ONLY    ?=
PROFILE ?= all
SEED    ?=
ROUND   ?=
CODE    := $(wildcard quiver flight_service spark_client tests benchmarks examples docs)

.DEFAULT_GOAL := help
.PHONY: help setup demo example check test images lint lines unit coverage system compat packaging spark integration crash chaos prove soak bench budget peers pictures up down clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with the pinned versions (quick when it is up to date)

# The stamp is younger than what it was made from: an up-to-date .venv costs nothing.
$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make setup PYTHON=python3.11"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP) ## A Spark job puts a million rows, the server is killed hard: nothing is lost
	@$(BIN)/python -m examples.demo

example: $(STAMP) ## A pipeline: logs from Quiver, error rates by Spark, back to Quiver, to Parquet
	@$(BIN)/python -m examples.telemetry

test: lint images unit system compat packaging spark integration crash ## All checks: lint, then every test

check: lint unit ## Before each commit: lint, types, layers and the unit tests

unit: $(STAMP) ## Tests of the parts and of the whole store (ARGS="-k name")
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS) tests/unit tests/property

# By itself: tracing takes as long again, and what runs in several processes isn't seen.
coverage: $(STAMP) ## The same, and which lines they reach
	@$(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=term $(ARGS) tests/unit tests/property

system: $(STAMP) ## Tests with failing disks, killed processes, many threads, real sockets
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS) \
		tests/faults tests/kill tests/fuzz tests/soak tests/stress tests/wire tests/bench tests/chaos

compat: $(STAMP) ## Directories, requests and clients of earlier versions against this one
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS) tests/compat

# In one process: its tests share the wheel and the environments.
packaging: $(STAMP) ## The wheel in clean environments: base, each extra, all, the client alone
	@$(BIN)/python -m pytest $(ARGS) tests/packaging

# Each test process has a Spark of its own; the cluster is in one of them.
spark: $(STAMP) ## Tests with real Spark (needs Java 17 or newer), local and on a cluster
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS) tests/spark

crash: $(STAMP) ## Crash states, all kinds of trouble combined, and the engine broken on purpose
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS) tests/crash tests/product

# Rounds with violations are kept, and each prints the line that plays it again.
chaos: $(STAMP) ## A server and clients in trouble (MINUTES=60 PROFILE=kill,rest SEED=7 ROUND=3)
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) --profile $(PROFILE) \
		$(if $(SEED),--seed $(SEED)) $(if $(ROUND),--round $(ROUND))

# Beside the tests that come first: those that need the images wait for them, or build them.
images: $(STAMP)
	@mkdir -p build
	@$(BIN)/python -m tests.integration.images > build/images.log 2>&1 &

# Without a Docker engine these are skipped, and say so; QUIVER_REQUIRE_DOCKER=1: they fail.
integration: $(STAMP) ## Tests across containers, with outages (needs Docker; ARGS="-k spark")
	@$(BIN)/python -m tests.integration.images
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS) tests/integration

lint: $(STAMP) ## Style, types and the layers of the architecture
	@echo "ruff check";   $(BIN)/ruff check --quiet .
	@echo "ruff format";  $(BIN)/ruff format --quiet --check . || \
		{ echo "not formatted: $(BIN)/ruff format ."; exit 1; }
	@echo "mypy --strict"; $(BIN)/mypy --strict --no-error-summary $(CODE)
	@echo "import layers"; $(BIN)/lint-imports --no-logo

lines: $(STAMP) ## How many lines each package has
	@$(BIN)/python -m tests.lines

prove: $(STAMP) ## Try everything that could break the promise; one table (ONLY="flips kill" for some)
	@$(BIN)/python -m tests.prove $(if $(ONLY),--only $(ONLY),--write)

soak: $(STAMP) ## The long run (MINUTES=60): busy, restarted, killed hundreds of times, idle; a picture
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[$(EXTRAS),soak]'
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) --out docs/img/soak.png
	@QUIVER_KILL_ROUNDS=500 $(BIN)/python -m pytest tests/kill
	@KILL_ROUNDS=300 IDLE_SECONDS=3600 \
		$(BIN)/python -m pytest tests/wire/test_kill.py tests/wire/test_churn.py

bench: $(STAMP) ## Measure against what the machine can do (ONLY=P1 for one bar, QUICK=1 to see it run)
	@$(BIN)/python -m benchmarks.run $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick)

peers: $(STAMP) ## Beside NATS JetStream and Redis Streams (needs redis-server; QUICK=1 to see it run)
	@$(BENCH_SETUP)
	@$(BIN)/python -m benchmarks.peers.run $(if $(QUICK),--quick)

pictures: $(STAMP) ## Draw the results of `make bench` and `make peers` for the documentation
	@$(BENCH_SETUP)
	@$(BIN)/python -m benchmarks.pictures
	@$(BIN)/python -m benchmarks.page

budget: $(STAMP) ## Where each microsecond of a put goes
	@$(BIN)/python -m benchmarks.budget

BENCH_SETUP = $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--constraint constraints.txt --editable '.[$(EXTRAS),bench]'

# `docker compose` where there is one, else the older program.
COMPOSE = $$(docker compose version > /dev/null 2>&1 && echo docker compose || echo docker-compose)

up: ## The whole pipeline in containers: watch it here and on http://127.0.0.1:8816 (Ctrl-C stops it)
	@base=$$(docker/base.sh) && export QUIVER_BASE_IMAGE=$$base && $(COMPOSE) build && $(COMPOSE) up $(ARGS)

down: ## Take the pipeline of `make up` down, with its data
	@$(COMPOSE) down --volumes --remove-orphans

clean: ## Remove what the other targets made, .venv included
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
