# Needs Python >= 3.11 and make, nothing else: the first target that runs makes .venv.

PYTHON ?= python3
BIN := .venv/bin
# Pythons that these commands start by the hundred do not compile the same sources each.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help puzzles figures test test-more test-all test-peers test-full book lab lint release-check

help:
	@echo "make puzzles        build the page of scan puzzles alone, in a minute, and open it: build/puzzles.html"
	@echo "make figures        run the notebooks at quick scale; they measure; and redraw all of figures/"
	@echo "make test           lint and test; neither a GPU nor much time is needed"
	@echo "make test-more      test the outer ring: all shapes, kernels, targets, browsers; some minutes more"
	@echo "make test-all       both"
	@echo "make test-peers     install PyTorch and JAX for CPUs, and run the tests that need them"
	@echo "make test-full      test at the papers' sizes too, and on the GPU where there is one"
	@echo "make book           build the web book of what make figures ran: build/book/html/index.html"
	@echo "make lab            open the notebooks in JupyterLab"
	@echo "make lint           check code and notebooks with ruff"
	@echo "make release-check  build, check and try what a release would publish: build/release/"
	@echo
	@echo "The first of them installs the tested versions into .venv (some minutes, once); make puzzles needs few (seconds)."
	@echo "Another Python than python3: make test PYTHON=python3.13"

puzzles: .venv/.puzzles
	$(BIN)/python docs/puzzle_page.py

KEPT := build/notebooks

figures: .venv/.installed
	$(BIN)/bppsa-nb notebooks --scale quick --jobs 2 --keep $(KEPT)
	$(BIN)/bppsa-nb draw

# A process per core takes one file of tests after the other, the longest ones first (tests/durations.csv).
PYTEST := $(BIN)/python -m pytest --numprocesses=logical
TESTS := tests warpwatch/tests
RING := $(PYTEST) --dist=loadfile --no-loadscope-reorder -m

test: lint
	$(RING) "not outer and not full and not peers" $(TESTS)

test-more: .venv/.installed
	$(RING) "outer and not full and not peers" $(TESTS)

test-all: test test-more

# What needs PyTorch and JAX, which no other command installs. Whatever is skipped here fails.
test-peers: .venv/.peers
	$(PYTEST) --dist=worksteal -m "peers and not full" tests

# What takes gigabytes, or the GPU, has one process.
test-full: test-all
	$(BIN)/python -m pytest -m "full or gpu"

book: .venv/.docs $(KEPT)
	$(BIN)/python docs/book.py

$(KEPT):
	$(MAKE) figures

lab: .venv/.installed
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks

lint: .venv/.installed
	$(BIN)/ruff check .

release-check: .venv/bin/pip
	$(BIN)/python docs/release.py

# Whoever comes first makes .venv; the others add to it.
.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; \
	this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.13")'
	$(PYTHON) -m venv .venv

# A stamp is written last, so an installation that was cut short is taken up again.
.venv/.installed: pyproject.toml warpwatch/pyproject.toml constraints.txt | .venv/bin/pip
	$(BIN)/python -m pip install --constraint constraints.txt --editable ./warpwatch --editable '.[all,test]'
	@touch $@

# All that the page of puzzles needs.
.venv/.puzzles: constraints.txt | .venv/bin/pip
	$(BIN)/python -m pip install --constraint constraints.txt brython mistune
	@touch $@

# PyPI's PyTorch for Linux brings gigabytes of CUDA; its own index has one for CPUs, and nothing else is looked for there.
.venv/.peers: .venv/.installed
	$(BIN)/python -m pip install --constraint constraints.txt --no-deps --retries 1 \
	--extra-index-url https://download.pytorch.org/whl/cpu torch
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[bench]'
	@touch $@

.venv/.docs: .venv/.installed
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[docs]'
	@touch $@
