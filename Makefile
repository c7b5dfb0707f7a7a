# make demo    train five methods on handwritten digits and compare them
# make test    every check: ruff, mypy, pytest
# make test-extras  the tests that need heavy packages, in an environment of their own
# make nightly hours of seeded trials, which go on where they were interrupted (NIGHTLY="flips --minutes 30")
# make package build a source archive, a wheel from that, install it into an empty environment and run it

PYTHON ?= python3
BIN := .venv/bin
INSTALL := install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
SHIPPED := LICENSE cutlayer/py.typed $(wildcard *.md *.cff conftest.py cutlayer/*.py cutlayer/*/*.py cutlayer/*/*/*.py \
	cutlayer/*/*.json cutlayer/*/*/*.toml cutlayer/*/*.html tests/*.py tests/*/*.py tests/*/*/*.py docs/*.* examples/*.py examples/*/*.py)

export PYTHONDONTWRITEBYTECODE :=# nothing is compiled when it is installed: what is used is, once

.PHONY: demo test test-extras nightly package clean

demo: export OMP_NUM_THREADS := 1
demo: .venv/installed
	$(BIN)/cutlayer compare --preset demo --out runs/demo --overwrite

# The first time, tests are collected before they are run: otherwise all workers compile the same modules at once.
test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p build
	@echo "$(BIN)/mypy, beside the tests" && { $(BIN)/mypy >build/mypy.log 2>&1 & types=$$!; \
	[ -e .venv/compiled ] || { $(BIN)/pytest --collect-only --quiet >build/collected.log 2>&1; touch .venv/compiled; }; \
	$(BIN)/pytest --numprocesses auto --dist worksteal --quiet; tests=$$?; \
	wait $$types; typed=$$?; cat build/mypy.log; exit $$((tests + typed)); }

test-extras: export CUTLAYER_STANDIN := build/standin
test-extras: build/extras/installed
	build/extras/bin/python -m tests.standin.build $(CUTLAYER_STANDIN)
	build/extras/bin/pytest --numprocesses auto --dist loadfile --quiet -m extras

nightly: export OMP_NUM_THREADS := 1
nightly: .venv/installed
	CUTLAYER_THOROUGH=1 $(BIN)/pytest --quiet --numprocesses auto tests/engine/test_combine.py
	$(BIN)/python -m tests.nightly --ledger build/nightly.jsonl $(NIGHTLY)

package:
	rm -rf build/package
	$(PYTHON) -m venv build/package/tools
	build/package/tools/bin/python -m pip $(INSTALL) hatchling
	build/package/tools/bin/python -m hatchling build --target sdist --directory build/package/dist
	tar -tzf build/package/dist/cutlayer-*.tar.gz | sed 's:^[^/]*/::' > build/package/held
	@for name in $(SHIPPED); do grep -qxF "$$name" build/package/held || { echo "not in the sdist: $$name"; exit 1; }; done
	@echo "the sdist holds $(words $(SHIPPED)) files that it must"
	build/package/tools/bin/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
		--wheel-dir build/package/dist build/package/dist/cutlayer-*.tar.gz
	$(PYTHON) -m venv --without-pip build/package/empty
	build/package/tools/bin/python -m pip --python build/package/empty/bin/python $(INSTALL) build/package/dist/cutlayer-*.whl
	cd build/package && empty/bin/cutlayer run --rounds 2 --participation 5 --out run && empty/bin/cutlayer list schemes
	cd build/package && ! empty/bin/cutlayer certs init

.venv/installed: pyproject.toml constraints.txt
	@echo "installing into .venv: about a minute"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip $(INSTALL) --editable '.[dev]'
	touch $@

build/extras/installed: pyproject.toml constraints.txt
	@echo "installing into build/extras: a few minutes"
	$(PYTHON) -m venv build/extras
	build/extras/bin/python -m pip $(INSTALL) --editable '.[dev,extras]'
	touch $@

clean:
	rm -rf .venv build dist runs
