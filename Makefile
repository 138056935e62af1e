# Needs Python >= 3.11 and make, nothing else: the first target that runs makes .venv.

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help figures test test-full test-most test-beside lab lint

help:
	@echo "make figures    run the notebooks at quick scale; they measure, and redraw figures/"
	@echo "make test       lint and test; neither a GPU nor much time is needed"
	@echo "make test-full  test at the papers' sizes too, and on the GPU where there is one"
	@echo "make lab        open the notebooks in JupyterLab"
	@echo "make lint       check code and notebooks with ruff"
	@echo
	@echo "The first of them installs the tested versions into .venv (some minutes, once)."
	@echo "Another Python than python3: make test PYTHON=python3.13"

figures: .venv/.installed
	$(BIN)/bppsa-nb notebooks --scale quick

# The CUDA simulator must be chosen before Numba is imported, so its tests have a process of their own.
SIMULATE := NUMBA_ENABLE_CUDASIM=1 $(BIN)/python -m pytest -m simulator tests/test_cuda.py tests/multigrid/test_cuda.py tests/test_device.py tests/test_benchmarks.py tests/experiments/test_figure_09.py
COMPILED := $(BIN)/python -m pytest -m "not gpu and not full and not simulator"
BESIDE := tests/distributed tests/experiments tests/multigrid

# Two halves side by side, on a core each; what the second one says is shown when it is done.
test: lint
	@$(MAKE) --no-print-directory --jobs=2 test-most test-beside

test-full: lint
	$(SIMULATE)
	$(BIN)/python -m pytest -m "not simulator"

test-most:
	$(COMPILED) $(BESIDE:%=--ignore=%)

test-beside:
	@{ $(SIMULATE) && $(COMPILED) $(BESIDE); } > .venv/beside.log 2>&1; status=$$?; cat .venv/beside.log; exit $$status

lab: .venv/.installed
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks

lint: .venv/.installed
	$(BIN)/ruff check .

# The stamp is written last, so an installation that was cut short is taken up again.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; \
	this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.13")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[gpu,mpi,test]'
	@touch $@
