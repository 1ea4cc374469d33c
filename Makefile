# Two commands set everything up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
DEMO := executor/workloads/bytes_lm.py:demo

.PHONY: demo test test-fast lint format schemas docs notebooks gpu gpu2 clean

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade "pip>=25.1"
	$(PY) -m pip install --quiet -c constraints.txt --group dev -e ".[executor]"
	touch $@

demo: $(VENV)/.ready  ## the whole path on two emulated devices, on real text
	$(PY) -m executor profile $(DEMO) --device cpu --device-memory 24MiB --h2d 1GB/s --d2h 1GB/s -o profiles/demo.json
	$(PY) -m planner build profiles/demo.json --devices 2 -o plans/demo.json
	$(PY) -m planner check plans/demo.json
	$(PY) -m planner show plans/demo.json --gantt plans/demo.png --trace plans/demo-trace.json
	$(PY) -m executor run plans/demo.json -o runs/demo --overwrite
	$(PY) -m planner compare plans/demo.json runs/demo --gantt runs/demo.png --trace runs/demo-trace.json
	@echo "plan plans/demo.json   run runs/demo   Gantt picture runs/demo.png"

test: $(VENV)/.ready  ## every test, a file at a time on each core
	$(PY) -m pytest -q -n auto --max-worker-restart 0 --dist loadfile --no-loadscope-reorder

# Rules of the house, formats, checker, rounds, replay, and two whole paths; without what is slow.
FAST := tests/test_architecture.py tests/profiles tests/plans tests/planner/estimate \
	tests/planner/bounds tests/planner/rounds tests/planner/shards tests/planner/charts tests/planner/report tests/planner/views \
	tests/executor/records tests/executor/replay \
	tests/whole/test_end_to_end.py tests/whole/test_evaluation.py
SLOW := alike check_mutations check_disk check_fuzz check_hostile host_bytes memory

test-fast: $(VENV)/.ready  ## the tests that catch most, in one to two minutes
	$(PY) -m pytest -q -n auto --dist loadfile --no-loadscope-reorder -m "not slow" \
		$(SLOW:%=--ignore-glob='*/test_%.py') --ignore=tests/planner/rounds/test_evaluation.py $(FAST)

lint: $(VENV)/.ready  ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(VENV)/.ready
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

schemas: $(VENV)/.ready  ## rewrite the exported JSON Schemas
	$(PY) -m plans profile > profiles/profile.schema.json
	$(PY) -m plans plan > plans/plan.schema.json
	$(PY) -m plans runlog > plans/runlog.schema.json

docs: $(VENV)/.ready  ## rewrite docs/commands.md from the commands
	$(PY) docs/commands.py

notebooks: $(VENV)/.ready  ## run the notebooks and store what they print and draw
	$(PY) notebooks/renew.py

# Prepares the machine for the suite on GPUs, and runs it.
SUITE = { [ "$(PY)" != "$(VENV)/bin/python" ] || $(MAKE) --no-print-directory $(VENV)/.ready; } && \
	$(PY) -m tests.gpu.suite --out runs/gpu-$$(date +%Y%m%d-%H%M%S)

# PY=python3 where the machine's own Python has torch, numpy and msgspec, and no index can be reached.
gpu:  ## everything that is measured on a GPU: one table, and runs/gpu-TIME to send back
	@if nvidia-smi -L > /dev/null 2>&1; then $(SUITE); \
	else echo "skipped: no GPU here (nvidia-smi finds none)"; fi

gpu2:  ## a pipeline over two GPUs, each in a process that torchrun starts, against one process
	@if [ "$$(nvidia-smi -L 2> /dev/null | grep -c ^GPU)" -ge 2 ]; then $(SUITE) --only processes; \
	else echo "skipped: fewer than two GPUs here (nvidia-smi says)"; fi

clean:
	rm -rf $(VENV) runs build *.egg-info .mypy_cache .ruff_cache .hypothesis
