# One target per task: demo, test, check, bench, test-s3. Everything is installed in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PYSPARK_PYTHON := $(abspath $(BIN))/python
export PATH := $(abspath $(BIN)):$(PATH)
# Tests and demo start hundreds of processes: without compiled modules each needs half a second more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo docs test test-long nightly check format bench bench-peers test-s3 test-clients test-grafana test-browser test-console test-package test-deploy verify compare-faults scale site release clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -e 's/:.*##/\t/'

setup: $(STAMP)  ## create .venv with all dependencies of sluice and its tests

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "sluice needs Python 3.11 or later; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@$(BIN)/python -m compileall -q */*sluice*
	@touch $(STAMP)

# pytest's own limit raises an exception in the test. Where a library or an event loop swallows that,
# this one prints what each thread is doing and ends the process; the other tests of the file run in
# another. No test of `make test` takes a minute on two cores.
HANGING := -o faulthandler_timeout=480 -o faulthandler_exit_on_timeout=true --max-worker-restart 2

# A file of tests runs in one process, so its tests share their fixtures. Two processes more than
# cores, because many tests wait for other processes; each collects all tests, for 14 s of processor
# time.
CORES := $(shell getconf _NPROCESSORS_ONLN)
PARALLEL := -n $(shell expr $(CORES) + 2) --maxprocesses 6 --dist loadfile --no-loadscope-reorder $(HANGING)

# For targets whose tests measure, open browsers or start many processes each.
TWO_PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
# Thousands of examples take longer than the five minutes of other tests if the machine is busy. The
# slowest tests are listed, so that what to shorten is known.
LONG_PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder --timeout 1800 --durations 40 --durations-min 30

test: setup  ## run the test suite; needs no network after setup. Tests of structure and prose run in `make check`
	@$(BIN)/python -m deploy.java
	$(BIN)/python -m pytest $(PARALLEL) --ignore=tests/architecture --ignore=tests/deploy -m "not s3 and not long and not clients and not browser and not console and not package"

test-long: setup  ## run the long tests, with more examples of most properties: races, soak, fuzzing; some need the real S3 server
	@deploy/versitygw.sh
	$(BIN)/python -m pytest $(LONG_PARALLEL) --hypothesis-profile=long -m "long or hypothesis"

nightly: setup  ## run every target, or TARGETS="test test-s3", and summarise; WRITE=1 records the results in docs/verification.md
	$(BIN)/python -m deploy.nightly $(if $(WRITE),--write) $(TARGETS)

test-s3: setup  ## run the store's suite on a real S3 server (versitygw, built once with go install)
	@deploy/versitygw.sh
	$(BIN)/python -m pytest $(TWO_PARALLEL) -m "s3 and not long"

test-clients: setup  ## run the tests with real clients of the doors; builds or unpacks them once. SLUICE_CLIENT_RECORDS=100000 is the full size
	@$(BIN)/python -m deploy.java
	@deploy/clients/build.sh
	$(BIN)/python -m pytest $(TWO_PARALLEL) tests/integration/clients

test-grafana: setup  ## replay the requests of Grafana, compare with its grammar of LogQL, and evaluate PromQL with Prometheus over remote read; builds the programs once
	@deploy/clients/build.sh debian prometheus node_clients
	$(BIN)/python -m pytest $(TWO_PARALLEL) -m "not long" tests/integration/grafana tests/integration/clients/test_logql_grammar.py

test-browser: setup  ## run the tests that need a real browser; installs Debian's chromium if it is missing
	@command -v chromium > /dev/null || { apt-get update && apt-get install -y --no-install-recommends chromium; }
	$(BIN)/python -m pytest -m browser tests/integration/web

test-console: setup  ## run the console's tests in Debian's chromium, which is installed if it is missing; SLUICE_TEST_PICTURES=1 writes docs/pictures
	@command -v chromium > /dev/null || { apt-get update && apt-get install -y --no-install-recommends chromium; }
	$(BIN)/python -m pytest $(TWO_PARALLEL) -m "not long" tests/integration/console tests/unit/console

test-package: setup  ## build the wheel, install it into empty environments, and run every documented command; CLIENTS="debian" prepares only these clients
	-@deploy/clients/build.sh $(CLIENTS)
	-@deploy/tools.sh shells
	$(BIN)/python -m pytest -s tests/package

test-deploy: setup  ## check the files of deploy/ with systemd, Docker Compose, Helm, OpenTofu and promtool; installs the tools once
	@deploy/tools.sh
	$(BIN)/python -m pytest tests/deploy

verify: setup  ## disturb a cluster on each store for MINUTES=10 and check its histories; SEED=7 repeats the faults of a run, STORE=versitygw or seaweedfs selects a store, WRITE=1 records the results in docs/verification.md
	@$(BIN)/python -m deploy.java
	@deploy/versitygw.sh
	@deploy/seaweedfs.sh
	PYTHONPATH=tests:. $(BIN)/python -m verify --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE)) $(if $(WRITE),--write)

scale: setup  ## measure bytes a second and processor seconds a GiB by the number of lanes, gateways and agents; WRITE=1 records the run in docs/sizing.md
	@$(BIN)/python -m deploy.java
	$(BIN)/python -m benchmarks.scale $(if $(BATCHES),--batches $(BATCHES)) $(if $(WRITE),--write)

compare-faults: setup  ## ship the same lines through sluice, the Collector, Fluent Bit, Kafka and syslog-ng while the same faults happen; OUTAGE_S=600 is how long the store is unreachable, WRITE=1 records the results in docs/comparison.md
	@deploy/versitygw.sh
	@deploy/clients/build.sh debian kafka collector_shipper fluent_bit_s3
	PYTHONPATH=tests:. $(BIN)/python -m verify.compare_faults $(if $(OUTAGE_S),--outage-s $(OUTAGE_S)) $(if $(SEED),--seed $(SEED)) $(if $(WRITE),--write)

check: setup  ## check format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	MYPYPATH=tests:. $(BIN)/mypy tests/support tests/verify
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/architecture

format: setup  ## format the code with ruff
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## run every benchmark with its control; NAME=store runs one of them
	$(BIN)/python -m benchmarks $(NAME)

bench-peers: setup  ## compare with NATS, Kafka, the Collector and syslog-ng in one run; builds them once. FRESH=1 measures the first batches after a start. WRITE=1 records the run in docs/comparison.md
	$(BIN)/python -m benchmarks.peers $(if $(FRESH),--fresh) $(if $(WRITE),--write)

docs: setup  ## write the pages and diagrams that are generated from code
	$(BIN)/python -m deploy.events_page
	$(BIN)/python -m deploy.reference
	$(BIN)/python -m deploy.state_machines

demo: setup  ## run the whole pipeline on this machine's logs and check the result
	@$(BIN)/python -m deploy.java
	$(BIN)/python -m deploy.demo $(if $(INPUT),--input $(INPUT))

site: setup  ## build the documentation as a site into site/; a warning is an error
	@deploy/tools.sh
	NO_MKDOCS_2_WARNING=1 $${XDG_CACHE_HOME:-$$HOME/.cache}/sluice/deploy-tools/venv/bin/mkdocs build --strict

release: setup  ## build wheel, sdist, bill of materials, notes and checksums into dist/
	@deploy/tools.sh
	$(BIN)/python -m deploy.release $(OUTPUT)

clean:  ## remove .venv and the files of the demo
	rm -rf $(VENV) .sluice .demo
