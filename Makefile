# Everything goes through one environment, .venv, installed from constraints.txt.
# PIP_ARGS is passed to pip: see "Installing" in the README for machines with and without a GPU.
PYTHON ?= python3
BIN := .venv/bin
LAKE ?= demo/lake
# Processes of the tests, two gigabytes each, four where a slow one serves a model. Fast tests are shared out by file, slow ones
# one by one.
PROCESSES ?= 2

# Tests start hundreds of processes: each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo ui notebook check format types docs test test-slow test-thorough serve-env gpu clean
.DEFAULT_GOAL := help

help:  ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' Makefile

demo: .venv/installed  ## Every stage on made logs and a small real model; `millrace demo --quick` is the toy
	$(BIN)/millrace demo --lake $(LAKE)

ui: .venv/installed  ## The graph of the demo's lake (LAKE=...) in the browser
	$(BIN)/millrace ui --lake $(LAKE)

# Makes the quick demo's lake and a second release in it, then runs docs/notebooks/*.ipynb again and stores their outputs.
notebook: .venv/installed  ## Runs the notebooks again on a new demo lake and stores their outputs
	$(BIN)/pip install --quiet --constraint constraints.txt $(PIP_ARGS) --editable '.[notebook]'
	$(BIN)/millrace demo --quick --lake demo/quick/lake
	(cat demo/quick/quick.yaml; echo 'curation: {near_duplicates: {enabled: false}}') > demo/quick/second.yaml
	$(BIN)/millrace run demo/quick/second.yaml --lake demo/quick/lake
	MILLRACE_LAKE=$(CURDIR)/demo/quick/lake $(BIN)/jupyter-execute --inplace docs/notebooks/analysts.ipynb docs/notebooks/answers.ipynb

check: .venv/installed types docs  ## Lint, format, types and docs, without tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/installed  ## Formats the code, and mends what lint can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The first run takes half a minute; the next ones read its cache in seconds.
types: .venv/installed  ## Types of the product: millrace, model_ops, resources and pipelines
	$(BIN)/mypy

docs: .venv/installed  ## The pages as a site in build/site, with every link checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: $(if $(ROOM),.venv/installed,check)  ## Checks and fast tests; ROOM=resources/drifting: the fast tests of one room alone
	@test -e tests/$(ROOM) || { echo "there is no tests/$(ROOM): name a folder or file below tests/, such as ROOM=$(firstword $(subst /, ,$(ROOM)))"; exit 2; }
	$(BIN)/pytest -m "not slow and not thorough" -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(addprefix tests/,$(ROOM))

test-slow: .venv/installed  ## The whole graph, real servers, kills
	$(BIN)/pytest -m "slow and not thorough" -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder --timeout 1800

# Every case of what the other two test in some cases: before a release, and after a change of what all families share.
test-thorough: .venv/installed  ## Further families, formats and moments of what the other two test
	$(BIN)/pytest -m thorough -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder --timeout 1800

# An environment with vLLM's CPU build, once for all checkouts (minutes, 3.5 GB); prints its interpreter, for `millrace serve --program`.
# MILLRACE_VLLM names another place. On a machine with a GPU: `pip install vllm` in an environment of its own.
serve-env: .venv/installed  ## An environment with vLLM's CPU build
	@$(BIN)/python -m benchmarks.vllm_environment

# On a machine with a CUDA device: ceilings, tests that need one, training and decoding, into build/gpu. Continues where it was
# stopped; AGAIN=1 measures all. A machine without make, network or this environment: python -m benchmarks.gpu --help.
gpu: .venv/installed  ## Tests and benchmarks that need a CUDA device
	$(BIN)/python -m benchmarks.gpu --seconds $(or $(DEADLINE),1800) $(if $(AGAIN),--again)

.venv/installed: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "millrace needs Python 3.11 or later: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt $(PIP_ARGS) torch
	$(BIN)/pip install --quiet --constraint constraints.txt $(PIP_ARGS) --editable '.[ui,test]'
	$(BIN)/python -m pipelines.demo.compile_kernels
	touch $@

# Tests keep what takes minutes to make in a folder of this checkout's own: tests/kept.py.
clean:  ## Removes what demo, tests, docs and tools leave behind
	rm -rf $${TMPDIR:-/tmp}/millrace-tests-*-$$(printf %s '$(realpath .)' | sha256sum | cut -c 1-12)
	rm -rf demo build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
