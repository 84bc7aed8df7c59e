# Every target, with its comment, is listed by `make help`.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.setup-done
EXTRAS  := server,dev
WORKERS ?= 2
MINUTES ?= 60
ONLY    ?=
CODE    := $(wildcard quiver flight_service spark_client tests benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint unit system crash soak bench clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

demo: $(STAMP) ## A server under load, killed hard and started again: nothing is lost
	@$(BIN)/python examples/demo.py

test: lint unit system crash ## All checks: lint, then every test

# What is fast and runs in one process is measured; tracing would only slow down the rest.
unit: $(STAMP) ## Tests of the parts and of the whole store, with coverage (ARGS="-k name")
	@$(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=term $(ARGS) tests/unit tests/property

system: $(STAMP) ## Tests with failing disks, killed processes, many threads, real sockets
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS) \
		tests/faults tests/kill tests/fuzz tests/soak tests/stress tests/wire tests/bench

crash: $(STAMP) ## 100,000 crash states, and the engine broken on purpose
	@$(BIN)/python -m pytest $(ARGS) tests/crash

lint: $(STAMP) ## Style, types and the layers of the architecture
	@echo "ruff check";   $(BIN)/ruff check --quiet .
	@echo "ruff format";  $(BIN)/ruff format --quiet --check . || \
		{ echo "not formatted: $(BIN)/ruff format ."; exit 1; }
	@echo "mypy --strict"; $(BIN)/mypy --strict --no-error-summary $(CODE)
	@echo "import layers"; $(BIN)/lint-imports --no-logo

prove: $(STAMP) ## Try everything that could break the promise; one table (ONLY="flips kill" for some)
	@$(BIN)/python -m tests.prove $(if $(ONLY),--only $(ONLY),--write)

soak: $(STAMP) ## The long run (MINUTES=60): busy, restarted, killed hundreds of times, idle; a picture
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[$(EXTRAS),soak]'
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) --out docs/img/soak.png
	@QUIVER_KILL_ROUNDS=500 $(BIN)/python -m pytest tests/kill
	@KILL_ROUNDS=300 IDLE_SECONDS=3600 \
		$(BIN)/python -m pytest tests/wire/test_kill.py tests/wire/test_churn.py

bench: $(STAMP) ## Measure against what the machine can do (ONLY=P1 for one bar)
	@$(BIN)/python -m benchmarks.run $(if $(ONLY),--only $(ONLY))

clean: ## Remove what the other targets made, .venv included
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
