# README's two commands, and what they need. Everything goes to .venv.
#
# Python:  make demo PYTHON=python3.12
# A laptop without a GPU can take the smaller CPU build of torch (make test only):
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
PYTHON ?= python3
TORCH_INDEX ?=
LEROBOT_PYTHON ?= python3.12
LEROBOT ?= lerobot[dataset]==0.6.1
LEROBOT_VENV ?= .venv-lerobot
DIST ?= loadfile

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PINNED := --constraint constraints.txt
EXTRAS := mediapipe,ace,dex,mano,ros,train,test
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
DEMO_OUT ?= demo_out
DOCS_OUT ?= site
MODULE ?=
ONLY ?=
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -rs --durations 10 \
	-n auto --maxprocesses 4 --dist $(DIST)

.PHONY: demo test test-all lint docs bench mutants test-lerobot test-lowest clean

demo: $(VENV)/.core
	$(BIN)/python examples/demo.py --output $(DEMO_OUT)

# Files side by side; each process keeps to one thread, or they would wait for one another. Compiled
# files are kept: every process and command that a test starts would compile all of it again.
test: $(VENV)/.full
	$(PYTEST)

# The slow tests too, and arrays checked in every call, not in a test's first ones.
test-all: $(VENV)/.full
	ACEHAND_SLOW=1 $(PYTEST)

lint: $(VENV)/.full
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.full
	$(BIN)/python -m mkdocs build --quiet --site-dir $(DOCS_OUT)

# Times of docs/performance.md, each next to its peer: on an idle machine, about 40 minutes.
bench: $(VENV)/.full
	$(BIN)/python -m benchmarks.all main_job encoding synth batch solver

# Mutation testing: changes of a module that no test notices. Of all modules in [tool.mutants], or of one:
#   make mutants MODULE=acehand_core/geometry/cameras.py
# ONLY='*[369]' takes three tenths of its mutants, by their names.
mutants: $(VENV)/.mutants
	OMP_NUM_THREADS=1 $(BIN)/python tools/mutants.py $(MODULE) $(if $(ONLY),'$(ONLY)')

# The judge of our datasets: the real loader, with this package in the same environment (Python 3.12,
# 5 GB). Another lerobot:  make test-lerobot LEROBOT=FOLDER[dataset] LEROBOT_VENV=.venv-lerobot-other
test-lerobot: $(VENV)/.full $(LEROBOT_VENV)/.done
	ACEHAND_LEROBOT_PYTHON=$(abspath $(LEROBOT_VENV)/bin/python) $(BIN)/python -m pytest -q -m lerobot

# The lowest versions that pyproject.toml allows, without torch: files that use these libraries.
LOWEST_TESTS := video video_encode undistort clips lerobot lerobot_check lerobot_input hand_table \
	bag_reading bag_messages bag_jobs user_model simulate render trajectory synthetic_clip \
	reconstruct cli
test-lowest: .venv-lowest/.done
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -q -rs $(foreach name,$(LOWEST_TESTS),$(shell find tests -name test_$(name).py))

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info < (3, 13), "Python 3.11 or 3.12 is needed; choose one with PYTHON=..."'
	$(PYTHON) -m venv $(VENV)

# The main job: no torch, no ROS.
$(VENV)/.core: pyproject.toml setup.py constraints.txt | $(VENV)/bin/python
	$(PIP) $(PINNED) --editable '.[mediapipe]'
	$(BIN)/acehand weights fetch hands
	touch $@

# Everything the tests compare with. torch first: unpinned, others would bring another build.
$(VENV)/.full: $(VENV)/.core
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) $(PINNED) --editable '.[$(EXTRAS)]'
	$(PIP) $(PINNED) --no-deps mediapipe
	touch $@

$(VENV)/.mutants: $(VENV)/.full
	$(PIP) $(PINNED) --editable '.[mutants]'
	touch $@

# lerobot first and by its own bounds: what follows must fit its versions, unpinned.
$(LEROBOT_VENV)/.done: pyproject.toml setup.py
	$(LEROBOT_PYTHON) -m venv $(LEROBOT_VENV)
	$(LEROBOT_VENV)/bin/python -m pip install --quiet '$(LEROBOT)' pytest
	$(LEROBOT_VENV)/bin/python -m pip install --quiet '$(LEROBOT)' --editable '.[mediapipe]'
	$(LEROBOT_VENV)/bin/acehand weights fetch hands
	touch $@

.venv-lowest/.done: pyproject.toml setup.py constraints-lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --constraint constraints-lowest.txt \
		--editable '.[mediapipe,ros]' beartype hypothesis pytest
	.venv-lowest/bin/acehand weights fetch hands
	touch $@

clean:
	rm -rf $(VENV) $(LEROBOT_VENV) .venv-lowest mutants build *.egg-info
