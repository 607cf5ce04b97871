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

.PHONY: demo test test-slow test-thorough gpu ui notebook serve-env clean

demo: .venv/installed
	$(BIN)/millrace demo --lake $(LAKE)

ui: .venv/installed
	$(BIN)/millrace ui --lake $(LAKE)

# Makes the quick demo's lake and a second release in it, then runs docs/notebooks/*.ipynb again and stores their outputs.
notebook: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt $(PIP_ARGS) --editable '.[notebook]'
	$(BIN)/millrace demo --quick --lake demo/quick/lake
	(cat demo/quick/quick.yaml; echo 'curation: {near_duplicates: {enabled: false}}') > demo/quick/second.yaml
	$(BIN)/millrace run demo/quick/second.yaml --lake demo/quick/lake
	MILLRACE_LAKE=$(CURDIR)/demo/quick/lake $(BIN)/jupyter-execute --inplace docs/notebooks/analysts.ipynb docs/notebooks/answers.ipynb

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/pytest -m "not slow and not thorough" -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

test-slow: .venv/installed
	$(BIN)/pytest -m "slow and not thorough" -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder --timeout 1800

# Every case of what the other two test in some cases: before a release, and after a change of what all families share.
test-thorough: .venv/installed
	$(BIN)/pytest -m thorough -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder --timeout 1800

# An environment with vLLM's CPU build, once for all checkouts (minutes, 3.5 GB); prints its interpreter, for `millrace serve --program`.
# MILLRACE_VLLM names another place. On a machine with a GPU: `pip install vllm` in an environment of its own.
serve-env: .venv/installed
	@$(BIN)/python -m benchmarks.vllm_environment

# On a machine with a CUDA device: tests that need one, then benchmarks.gpu. Continues where it was stopped; AGAIN=1 measures all.
gpu: .venv/installed
	$(BIN)/python -m benchmarks.gpu --cuda $(if $(AGAIN),--again)

.venv/installed: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "millrace needs Python 3.11 or later: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt $(PIP_ARGS) torch
	$(BIN)/pip install --quiet --constraint constraints.txt $(PIP_ARGS) --editable '.[ui,test]'
	$(BIN)/python -m pipelines.demo.compile_kernels
	touch $@

# Tests keep what takes minutes to make in a folder of this checkout's own: tests/kept.py.
clean:
	rm -rf $${TMPDIR:-/tmp}/millrace-tests-*-$$(printf %s '$(realpath .)' | sha256sum | cut -c 1-12)
	rm -rf demo build *.egg-info .pytest_cache .ruff_cache .hypothesis
