# Everything a person types: make demo, make test, make lint, make bench-<name>.
# The first use creates .venv and installs what is needed from the package registries.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# torch: "cpu" keeps gigabytes of CUDA packages away; "cuda" takes the registry's newest build.
TORCH  ?= cpu
# Processes that run tests side by side: one more than two cores, since many tests wait.
JOBS   ?= 3
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --ignore=tests/deploy/test_compose.py
# make chaos: how long server mode is kept under faults.
MINUTES ?= 20

# Images and CI machines often set this; without bytecode every process compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo serve test test-all test-slow test-compose lint format openapi failure-codes measurements calibrate chaos fuzz-patching clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20
	@echo "bench-NAME          A benchmark: api, budgets, confirmation, crowd, discrimination, environments, evaluation,"
	@echo "                    overhead, execution-rate, gpu, patching, sandbox, scheduler, search, seeded-faults, shares, slots, syscalls, verdicts"

install: $(VENV)/.installed-$(TORCH) ## Create .venv and install everything (TORCH=cuda for a GPU)

$(VENV)/.installed-$(TORCH): pyproject.toml scripts/install.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH="$(TORCH)" bash scripts/install.sh
	@touch $@

demo: install ## Ideas in, measured results out: no key, no Docker, no root, no GPU
	@$(BIN)/assay demo

serve: install ## Serve the API at http://127.0.0.1:8000
	@$(BIN)/assay serve

test: install ## Tests of minutes: no Docker, no Postgres, no root
	@scripts/timed.sh "make test" $(PYTEST) -m "not slow" --durations 10

test-all: install ## Every test but the compose stack (CI=true: nothing may be skipped)
	@scripts/timed.sh "make test-all" $(MAKE) --no-print-directory test test-slow

# What `make test` leaves out, and the property tests again with many examples.
test-slow: install
	@$(PYTEST) -m "slow or hypothesis" --hypothesis-profile long --durations 25

test-compose: install ## The Docker Compose stack
	@$(BIN)/python -m pytest tests/deploy/test_compose.py

lint: install ## Formatting, style, types, import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: install ## Rewrite files in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

openapi: install ## Rewrite docs/openapi.json from the code
	@$(BIN)/python scripts/openapi.py

failure-codes: install ## Rewrite the tables of failure codes in docs/errors.md
	@$(BIN)/python -m scripts.failure_codes

measurements: install ## Write measured figures into the pages, and draw the README's picture
	@$(BIN)/python -m scripts.measurements

calibrate: install ## Measure what the pages say of the environments; hours, resumable
	@$(BIN)/python -m benchmarks.calibrate

chaos: install ## kill -9 hundreds of times, then a soak of server mode (MINUTES=20)
	@$(BIN)/python -m benchmarks.chaos moments --moments 20
	@$(BIN)/python -m benchmarks.chaos kills --kills 200
	@$(BIN)/python -m benchmarks.chaos implement --kills 50
	@$(BIN)/python -m benchmarks.chaos soak --minutes $(MINUTES)

fuzz-patching: install ## Ten minutes of damaged diffs against the patcher
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=3,<4' \
		|| echo "atheris cannot be installed here: damage will not be steered by coverage"
	@$(BIN)/python -m benchmarks.fuzz_patching --minutes 10

bench-%: install
	@$(BIN)/python -m benchmarks.$(subst -,_,$*)

clean: ## Remove the environment and everything the service stored
	rm -rf $(VENV) .assay build dist .mypy_cache .ruff_cache .pytest_cache
