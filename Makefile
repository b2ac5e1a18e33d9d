# make demo   set everything up, run the first studies, draw their page
# make test   set everything up, run every check and every test, print the 25 slowest
# make test-fast   lint, and the tests that take less than a second or two
# make test-clean   build the wheel, install it beside torch and numpy only, run the library's main tests there
# make test-clean-all   the same with every test that needs no extra
# make test-other-cpu   a fast subset as an older CPU computes it, with 1 and with 2 threads
# make docs   build the documentation site into build/site, offline; a broken link is an error
# make notebooks   write every example as a notebook beside it
# make test-extras   install the trainers and solvers of the extras as well, run their tests
# make test-mutants   plant 200 faults one at a time and count those that the tests notice (an hour or more)
# make test-cluster   install Dask and Ray as well, run the same study on both
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
export OMP_NUM_THREADS ?= 1
# Compiled modules are kept, where a machine says otherwise too: the tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

# Of scripts that no test runs: names and arguments that the package no longer has.
LOOSE := no-untyped-def arg-type operator index union-attr misc assignment var-annotated func-returns-value \
  typeddict-item type-var return-value dict-item call-overload
SCRIPT_TYPES = MYPYPATH=benchmarks:benchmarks/doctor:docs/tools:examples:tests $(BIN)/mypy --explicit-package-bases --cache-dir .mypy_cache/scripts \
  --no-warn-unused-ignores $(LOOSE:%=--disable-error-code=%) benchmarks/*.py benchmarks/doctor/*.py docs/tools/*.py examples/*.py

.PHONY: demo docs lint notebooks test test-clean test-clean-all test-cluster test-extras test-fast test-mutants test-other-cpu setup clean help

help:
	@sed -n 's/^# \(make .*\)/  \1/p' Makefile

# The stamp is newer than what it was made from: a second call installs nothing. Of 13,000 modules 5,400 are ever
# loaded: the first process that loads one compiles it, not pip.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[dev]"
	touch $@

setup: $(VENV)/.installed

demo: setup
	$(BIN)/mindgap demo --out demo

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open file://$(CURDIR)/build/site/index.html"

notebooks: setup
	$(BIN)/python examples/make_notebooks.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python docs/tools/module_cycles.py
	$(BIN)/mypy
	$(SCRIPT_TYPES)

# mypy, the build of the wheel and a test with two threads leave a core free at times, hence three at a time.
test: setup
	$(MAKE) --jobs 3 --output-sync lint test-clean test-other-cpu
	$(PYTEST) -n 3 --dist worksteal --durations=25

test-fast: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PYTEST) -n 2 --dist worksteal --durations=25 -m "not slow"

test-clean: setup
	$(BIN)/python tests/clean_install.py build/clean -m "not slow"

test-clean-all: setup
	$(BIN)/python tests/clean_install.py build/clean all -m "not slow"

# No AVX2 and no fused multiply-add in torch, BLAS, numpy and the C library: other last digits, same verdicts.
OLD_CPU := ATEN_CPU_CAPABILITY=default OPENBLAS_CORETYPE=Nehalem \
  NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4" GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4
# Every example of the rules, optimizers, instruments and theorems; every rule against its transcription.
OTHER_CPU_TESTS := mindgap/rules mindgap/optim mindgap/measure mindgap/lab/theory tests/optim/test_optimizers_exact.py

test-other-cpu: setup
	$(OLD_CPU) OMP_NUM_THREADS=1 $(PYTEST) -q -n 2 --dist worksteal -m "not slow" $(OTHER_CPU_TESTS)
	$(OLD_CPU) OMP_NUM_THREADS=2 $(PYTEST) -q -m "not slow" tests/measure/test_curvature.py tests/measure/test_noise.py

$(VENV)/.cluster: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dask,ray]"
	touch $@

test-cluster: $(VENV)/.cluster
	$(PYTEST) tests/lab/studies/test_clusters.py

# The adapters against the real trainers, worst-case rates by semidefinite programs, packaged images.
$(VENV)/.extras: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[lightning,transformers,pep,images]"
	touch $@

test-extras: $(VENV)/.extras
	$(PYTEST) tests/adapters/test_adapters.py tests/lab/theory/test_ch2_textbook.py \
	  tests/lab/theory/test_textbook_and_nonsmooth_studies.py tests/lab/tasks/test_data_readers.py \
	  tests/lab/tasks/test_models.py tests/bilevel/test_bilevel_lora_example.py tests/docs/test_examples_run.py

test-mutants: setup
	$(BIN)/python tests/mutants.py --jobs 2 --out build/mutants.jsonl

clean:
	rm -rf $(VENV) demo build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
