# On a fresh machine with Python 3.11+, git, make and package registries, each target installs what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PROMPT ?= The capital of France is
# Workers share the cores: one thread each is faster, and far steadier, than two that spin.
WORKERS ?= 2

.PHONY: demo test lint docs bench-circuits bench-dictionaries bench-engine explain-prompts clean

demo: $(VENV)/.installed
	$(BIN)/mechanome explain "$(PROMPT)"

test: $(VENV)/.installed lint
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed
	$(BIN)/python scripts/family_matrix.py
	$(BIN)/python scripts/benchmark_table.py
	$(BIN)/python scripts/studies_table.py

# The 40 committed prompts, each with the report or refusal expected of it; half an hour on two cores.
explain-prompts: $(VENV)/.installed
	$(BIN)/python scripts/explain_prompts.py

bench-circuits bench-dictionaries bench-engine: bench-%: $(VENV)/.installed
	$(BIN)/python -m benchmarks.$*

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist
