.DEFAULT_GOAL := help
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Where torch comes from: its CPU build (192 MB) on Linux without a GPU, else what PyPI has, which on Linux
# brings CUDA along (2.8 GB). Choose yourself: make TORCH_INDEX=https://download.pytorch.org/whl/cpu, or
# make TORCH_INDEX= for the CUDA build.
ifneq ($(shell uname -s),Linux)
TORCH_INDEX ?=
else
TORCH_INDEX ?= $(if $(shell command -v nvidia-smi),,https://download.pytorch.org/whl/cpu)
endif

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --retries 1 --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,viewer,exports,training,data,heic,bags,rerun,docs,ray]"
	$(BIN)/anchor3r map "world:1?motion=driving&frames=60&width=320&height=240" --predictor features --out $(VENV)/first-map --overwrite  # compiles the kernels, once
	touch $@

.PHONY: help browser demo docs test install-test fuzz faults digests lock format bench peers clean
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/installed  ## render a looping world, map it, refine it, compare with ground truth (out/demo)
	$(BIN)/anchor3r demo --out out/demo

docs: $(VENV)/installed  ## build the documentation site (out/site); a broken link or reference is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: $(VENV)/installed  ## style, types and tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=src:tests:benchmarks:$$(printf '%s:' tests/*/) $(BIN)/mypy --config-file tests/mypy.ini tests
	$(BIN)/pytest -n 2

install-test: $(VENV)/installed  ## wheel and sdist, in a clean environment of each Python at hand; the Dockerfile's steps
	$(BIN)/pytest -m slow tests/test_install.py

fuzz: $(VENV)/installed  ## 5,000 hostile inputs through the command line, and all that ever failed (out/fuzz)
	$(BIN)/python tests/fuzz/campaign.py --corpus --cases 5000 --jobs 2 --out out/fuzz

faults: $(VENV)/installed  ## kill, fail, fill and fool the store at every place; what survives, as a table
	$(BIN)/python tests/faults/driver.py --minutes 10

digests: $(VENV)/installed  ## the same bits again, with two threads, without caches, and as stored for this CPU
	$(BIN)/python tests/determinism/digests.py --cold

lock: $(VENV)/installed  ## requirements.lock: what the wheel needs, pinned with hashes, for this platform
	$(BIN)/python packaging/lock.py

browser:  ## install Debian's Chromium, in which the viewer is tested (or say how)
	@if command -v chromium google-chrome; then true; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; \
	else echo "install Chromium, for example: sudo apt-get install chromium; without it its tests are skipped"; fi

format: $(VENV)/installed  ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

peers: $(VENV)/installed  ## install the libraries that the benchmarks compare with
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[peers]"

bench: $(VENV)/installed  ## every benchmark; tables on the screen, JSON in out/bench
	for script in benchmarks/*.py; do $(BIN)/python $$script --out out/bench || exit 1; done

clean:  ## remove everything that make has made
	rm -rf $(VENV) out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
