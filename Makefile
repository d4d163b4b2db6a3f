# Every target makes the environment it needs: `make demo` works in a fresh clone.
#   PYTHON=python3.12   the interpreter the environment is made with
#   JOBS=0              tests in one process (pdb, prints)
#   ARGS="-k save"      passed on to pytest

PYTHON ?= python3
JOBS ?= 2
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.stamp
TRITON := build/triton/.stamp

# One thread per process: two test processes then use two cores, and sums are repeatable.
# One inductor compile thread: no pool of compile processes behind each test process.
# loadfile: a file's tests stay in one process, so they share what they compiled.
# Bytecode is written, whatever the shell says: tests start many processes, which then load it.
# A test that hangs, or crashes its process, ends as a failure: xdist would start the file anew
# for ever.
PYTEST := OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 PYTHONDONTWRITEBYTECODE= \
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --max-worker-restart 1 --timeout 600

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-triton lint bench docs dist clean compiler

help:  ## say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

demo: $(STAMP) compiler  ## show what pullback does, on your machine
	$(BIN)/python -m examples.demo

test: $(STAMP) compiler  ## run the tests, but for the slow ones
	$(PYTEST) $(ARGS)

test-all: $(STAMP) compiler  ## run every test
	$(PYTEST) -m "" $(ARGS)

test-triton: $(STAMP) $(TRITON)  ## run the kernels that we write in Triton's interpreter
	PYTHONPATH=$(CURDIR)/build/triton $(PYTEST) -m needs_triton \
		tests/emit/triton tests/run/backends/test_triton.py tests/run/nodes/test_verify.py $(ARGS)

lint: $(STAMP)  ## check style, types and who imports whom; print the size of it all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src
	$(BIN)/lint-imports
	$(BIN)/python -m tests.repo.figures

bench: $(STAMP) compiler  ## measure every claim in benchmarks/
	@set -e; for file in $$(grep -l __main__ benchmarks/*.py); do \
		echo "== $$file"; \
		$(BIN)/python -m "benchmarks.$$(basename "$$file" .py)"; \
	done

docs: $(STAMP)  ## build the pages as a site, in build/site
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/python -m docs.generate
	$(BIN)/python -m mkdocs build --quiet --strict --site-dir build/site

dist: $(STAMP)  ## build the wheel and the source distribution, and check their metadata
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[release]'
	rm -rf dist
	$(BIN)/python -m build --quiet --no-isolation
	$(BIN)/python -m twine check --strict dist/*

clean:  ## remove the environment, builds and caches
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +
	find tests -name '*.got' -delete

compiler:
	@command -v "$${CXX:-g++}" >/dev/null || \
	echo "note: no C++ compiler found (g++, or the one named by CXX): what needs one is skipped"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
		echo "error: pullback needs Python 3.10 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: $(PYTHON) cannot make environments; install its venv package" >&2; \
		exit 1; }
	@echo "making .venv (once, a minute or more)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

# Beside the environment, and not in it: all other tests are of a machine without Triton.
$(TRITON): constraints.txt | $(STAMP)
	@echo "installing Triton into build/triton (once, some hundred megabytes)"
	rm -rf build/triton
	$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt --target build/triton triton
	@touch $@
