# make demo    train five methods on handwritten digits and compare them
# make test    every check: ruff, mypy, pytest
# make package build a wheel, install it into an empty environment and run it

PYTHON ?= python3
BIN := .venv/bin
INSTALL := install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test package clean

demo: export OMP_NUM_THREADS := 1
demo: .venv/installed
	$(BIN)/cutlayer compare --preset demo --out runs/demo --overwrite

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses auto --quiet

package:
	rm -rf build/package
	$(PYTHON) -m venv build/package
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/package/wheel .
	build/package/bin/python -m pip $(INSTALL) build/package/wheel/cutlayer-*.whl
	cd build/package && bin/cutlayer run --rounds 2 --participation 5 --out run && bin/cutlayer list schemes
	cd build/package && ! bin/cutlayer certs init

.venv/installed: pyproject.toml constraints.txt
	@echo "installing into .venv: a minute or two"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip $(INSTALL) --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist runs
