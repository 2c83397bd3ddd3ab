# Everything happens in .venv; nothing is installed elsewhere, but for Debian's chromium (browser tests, as root only).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
DEMO := demo-out

NATIVE := $(shell find tracer/native backend/native backend/include backend/vendors -name '*.cpp' -o -name '*.h')
MODULES := ral_trace.tracer ral_trace.backend ral_trace.analysis ral_trace.dashboard ral_trace.samples ral_trace.testing
CLANG_FORMATTED := $(NATIVE) $(wildcard tests/native/*.cpp tests/native/*.h tests/backend/*.cpp tests/benchmarks/*.cpp)

.DEFAULT_GOAL := help
.PHONY: help demo test bench soak lint format dashboard clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18

$(STAMPS)/venv:
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# torch first: with it present the build takes that one, and --no-build-isolation keeps pip from fetching a second.
$(STAMPS)/torch: $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.*' 'setuptools>=77' 'pybind11>=3.0,<4' 'ninja>=1.11'
	@touch $@

$(STAMPS)/package: $(STAMPS)/torch pyproject.toml setup.py $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e .
	@touch $@

$(STAMPS)/tests: $(STAMPS)/package
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[test,lint]'
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v chromium >/dev/null; then apt-get update -qq && apt-get install -y -qq chromium >/dev/null; fi
	@touch $@

demo: $(STAMPS)/package  ## train a small model on two devices, record it, and read what it did
	@mkdir -p $(DEMO)
	@rm -f $(DEMO)/*
	$(BIN)/ral-trace --duration 10s --output $(DEMO)/demo.duckdb -- $(BIN)/python -m ral_trace.samples.char_lm --seconds 15 --steps 100000 --checkpoint $(DEMO)/char_lm.pt
	$(BIN)/ral-trace --report $(DEMO)/demo.duckdb
	@$(BIN)/ral-trace --report $(DEMO)/demo.duckdb --html $(DEMO)/demo.html
	@$(BIN)/ral-trace export $(DEMO)/demo.duckdb --output $(DEMO)/demo.pftrace
	@echo
	@echo "The trace is           $(DEMO)/demo.duckdb    ($(BIN)/ral-trace query $(DEMO)/demo.duckdb \"SELECT ...\")"
	@echo "The HTML report is     $(DEMO)/demo.html"
	@echo "The Perfetto file is   $(DEMO)/demo.pftrace   (open it in ui.perfetto.dev)"
	@echo "The dashboard opens with: make dashboard"

dashboard: $(STAMPS)/package  ## open the demo's trace in the dashboard
	$(BIN)/ral-trace dashboard $(DEMO)/demo.duckdb

# A file's tests run in one process, those of several files side by side; PYTEST_ARGS='-n 0' runs them one by one.
test: $(STAMPS)/tests  ## run every test
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

bench: $(STAMPS)/tests  ## run the benchmarks; they print ratios
	$(BIN)/python -m tests.benchmarks

soak: $(STAMPS)/tests  ## run the long tests; RAL_SOAK_SECONDS says how long (600)
	RAL_TRACE_SOAK=1 $(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

lint: $(STAMPS)/tests  ## ruff, mypy, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.installed_mypy $(MODULES)
	@$(BIN)/clang-format --dry-run --Werror $(CLANG_FORMATTED)

format: $(STAMPS)/tests  ## format everything
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CLANG_FORMATTED)

clean:  ## remove everything that was built
	rm -rf $(VENV) build $(DEMO) *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find tracer backend -name '*.so' -delete
