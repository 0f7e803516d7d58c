# Each target sets up .venv when it is missing or pyproject.toml changed, and costs nothing when it is there.
PYTHON ?= python3
BIN := .venv/bin
DEMO_OUT ?= runs/demo

.PHONY: demo test test-accelerator test-hosts lint format docs bench bench-check chaos schedules bits tables clean

demo: .venv/demo-ready
	$(BIN)/ray-adaplr demo --out $(DEMO_OUT) $(ARGS)

# Two processes, a file's tests in one of them: much of the suite waits for Ray, for buckets and for commands.
test: .venv/dev-ready
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-accelerator: .venv/dev-ready
	$(BIN)/python tests/accelerator/build.py $(ARGS)

test-hosts: .venv/dev-ready
	$(BIN)/python -m pytest -m hosts $(ARGS)

lint: .venv/dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

bench: .venv/bench-ready
	$(BIN)/python -m benchmarks speed --out benchmarks/results/speed.json $(ARGS)

bench-check: .venv/dev-ready
	$(BIN)/python -m benchmarks speed --check $(ARGS)

schedules: .venv/dev-ready
	ADAPLR_SCHEDULES=2000 ADAPLR_RECORD=benchmarks/results/schedules.json $(BIN)/python -m pytest \
		tests/stages -k "no_schedule or planted or whichever" $(ARGS)

chaos: .venv/dev-ready
	$(BIN)/python -m benchmarks chaos $(ARGS)

bits: .venv/dev-ready
	$(BIN)/python -m benchmarks bits $(ARGS)

tables: .venv/dev-ready
	$(BIN)/python -m benchmarks tables $(ARGS)

clean:
	rm -rf .venv build dist site *.egg-info

$(BIN)/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/demo-ready: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[demo]'
	@touch $@

.venv/dev-ready: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@ .venv/demo-ready

.venv/docs-ready: .venv/dev-ready
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	@touch $@

.venv/bench-ready: .venv/dev-ready
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	@touch $@
