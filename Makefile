# Each target makes its own environment with python3 and pip; nothing else is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: plan test test-slow lint docs wheel bench clean
.DEFAULT_GOAL := plan

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,lint,docs,release]'
	touch $@

plan: $(STAMP)
	$(BIN)/fleetgrad plan examples/azure_conversation.toml

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

wheel: $(STAMP)
	$(BIN)/python -m build --outdir dist
	sh scripts/try_wheel.sh dist/fleetgrad-*.whl

bench: $(STAMP)
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf $(VENV) plan-output site dist
