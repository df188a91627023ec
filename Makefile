# The commands of this project. `make demo` shows the main job, `make test` is all that CI runs.
#
# PYTHON is the interpreter that .venv is made from (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv installs the 200 packages of the lock in seconds instead of minutes, and removes what isn't in it.
UV_VERSION := 0.13.9
UV := $(BIN)/uv
# The system's certificates, so that a company's own index or proxy is trusted as pip trusts it.
export UV_SYSTEM_CERTS := true
export PYTHONPATH := $(CURDIR):$(CURDIR)/plugins
# What Python compiles is kept, whatever the shell says: the tests start some hundred processes.
unexport PYTHONDONTWRITEBYTECODE

RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev

.PHONY: help demo up ask test soak bench lint format lock clean

help:
	@echo "make demo        ingest the bundled corpus through the batch API on a real Airflow, and ask it"
	@echo "make up          Airflow with its pages and the emulator; Ctrl-C stops all of it"
	@echo "make ask Q=\"…\"   ask the live index a question; CORPUS=name where it isn't python_docs"
	@echo "make test        lint and all tests, as CI runs them"
	@echo "make soak        kill runs at every point, then play random faults for SECONDS=600"
	@echo "make bench       measure the hot loops against their floors"
	@echo "make lint        ruff, mypy and import-linter"
	@echo "make lock        resolve requirements*.in anew"
	@echo "make clean       remove the stack's data (.local); the environment stays"

demo: $(RUNTIME)
	@$(BIN)/python -m include.local demo

up: $(RUNTIME)
	@$(BIN)/python -m include.local up

ask: $(RUNTIME)
	@test -n "$(value Q)" || { echo 'say what to ask: make ask Q="How do I leave a loop early?"'; exit 2; }
	@$(BIN)/python -m include.local cli ask --corpus "$$CORPUS" "$$Q"
ask: export Q := $(value Q)
ask: export CORPUS := $(or $(value CORPUS),python_docs)

# The tests on a running Airflow mostly wait, so the others run beside them; theirs is told at the end.
AIRFLOW_TESTS := .local/tests_on_airflow.log
test: lint
	@mkdir -p $(dir $(AIRFLOW_TESTS))
	@$(BIN)/pytest -m integration > $(AIRFLOW_TESTS) 2>&1 & airflow=$$!; \
	$(BIN)/pytest -m "not integration and not soak" --numprocesses 2 --dist loadfile --no-loadscope-reorder; others=$$?; \
	wait $$airflow; code=$$?; cat $(AIRFLOW_TESTS); exit $$((others || code))

# Alone and in one process: it is long, not wide.
SECONDS ?= 600
soak: $(DEV)
	SOAK_SECONDS=$(SECONDS) $(BIN)/pytest -m soak -s tests/faults

bench: $(DEV)
	$(BIN)/python -m tests.benchmarks

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy include plugins
	$(BIN)/lint-imports

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# For every platform and Python from 3.11 on, so that one lock serves all.
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --no-header
lock: $(UV)
	$(COMPILE) requirements.in -o requirements.txt
	$(COMPILE) requirements-extras.in -o requirements-extras.txt
	$(COMPILE) requirements-dev.in -o requirements-dev.txt

clean:
	rm -rf .local .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) --version 2>&1):" \
	         "say make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"

# Compiled, as a task is a process of its own: where Python may not write bytecode, each would compile all anew.
SYNC = $(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python

$(RUNTIME): requirements.txt | $(UV)
	$(SYNC) requirements.txt
	@touch $@

# Both stamps: whoever has the tests' packages has those of the runtime.
$(DEV): requirements.txt requirements-dev.txt | $(UV)
	$(SYNC) requirements.txt requirements-dev.txt
	@touch $(RUNTIME) $@
