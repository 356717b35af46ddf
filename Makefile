# The common commands. `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup run smoke fast test slow pages lint format types check ci clean

help:            ## this list
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

setup:           ## virtual environment with everything for development
	$(PYTHON) -m venv .venv
	$(BIN)/pip install torch==2.13.0
	$(BIN)/pip install -e '.[dev]'

run:             ## the main job: TRACE on the embedded phone world, 640 rollouts
	$(BIN)/python -m trace_bench method=trace env=toolsandbox

smoke:           ## a small run through every phase
	$(BIN)/python -m trace_bench experiment=smoke

fast:            ## the tests that need no torch
	$(BIN)/pytest -n auto --dist loadscope -m fast

test:            ## the tests that need seconds each
	$(BIN)/pytest -n auto --dist loadscope

slow:            ## the longer tests
	$(BIN)/pytest -n auto --dist loadscope -m "slow or worlds"

pages:           ## docs/ as a site in build/site, with the reference made from docstrings
	$(BIN)/pip install -q -e '.[docs]'
	$(BIN)/mkdocs build --strict -d build/site

lint:            ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format:          ## fix the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types:           ## types
	$(BIN)/mypy

check: lint types test   ## what a change must pass

ci:              ## everything, from a fresh clone of the last commit
	@clone=$$(mktemp -d) && trap 'rm -rf "$$clone"' EXIT && git clone -q . "$$clone/trace_bench" && "$$clone/trace_bench/.ci/run"

clean:           ## build products and caches; never runs/
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
