# make demo   set everything up, run the first studies, draw their page
# make test   set everything up, run every test
# make test-extras   install the trainers and solvers of the extras as well, run their tests
# make test-cluster   install Dask and Ray as well, run the same study on both
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-cluster test-extras setup clean help

help:
	@sed -n 's/^# \(make .*\)/  \1/p' Makefile

# The stamp is newer than what it was made from: a second call installs nothing.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

setup: $(VENV)/.installed

demo: setup
	$(BIN)/mindgap demo --out demo

test: setup
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal

$(VENV)/.cluster: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dask,ray]"
	touch $@

test-cluster: $(VENV)/.cluster
	$(BIN)/python -m pytest tests/lab/studies/test_clusters.py

# The adapters against the real trainers, worst-case rates by semidefinite programs, packaged images.
$(VENV)/.extras: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[lightning,transformers,pep,images]"
	touch $@

test-extras: $(VENV)/.extras
	$(BIN)/python -m pytest tests/adapters/test_adapters.py tests/lab/theory/test_ch2_textbook.py \
	  tests/lab/theory/test_textbook_and_nonsmooth_studies.py tests/lab/tasks/test_data_readers.py

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
