# One command each: demo, test, check, bench, test-s3. Everything lives in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PYSPARK_PYTHON := $(abspath $(BIN))/python
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: help setup demo test test-long check format bench test-s3 clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -e 's/:.*##/\t/'

setup: $(STAMP)  ## make .venv with everything that runs and tests sluice

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "sluice needs Python 3.11 or later; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $(STAMP)

test: setup  ## the test suite, without a network once set up
	@$(BIN)/python -m deploy.java
	$(BIN)/python -m pytest -m "not s3 and not long"

test-long: setup  ## the tests that take minutes: races, soak, long fuzzing
	$(BIN)/python -m pytest -m "long and not s3"

test-s3: setup  ## the store's suite on a real S3 server (versitygw, built by go install once)
	@deploy/versitygw.sh
	$(BIN)/python -m pytest -m s3

check: setup  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## let ruff put the code in form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## every benchmark with its control in the same run; NAME=store runs one
	$(BIN)/python -m benchmarks $(NAME)

demo: setup  ## the whole path once on this machine's own logs; checks its own result
	@$(BIN)/python -m deploy.java
	$(BIN)/python -m deploy.demo $(if $(INPUT),--input $(INPUT))

clean:  ## remove .venv and what the demo left
	rm -rf $(VENV) .sluice .demo
