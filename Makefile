# Two commands do everything: `make demo` and `make test`.
# PYTHON=python3.12 chooses the interpreter. TORCH_INDEX=URL takes torch from another package index, such as the one
# with CPU builds that PyTorch's installation page names.
PYTHON ?= python3
VENV ?= .venv
# What `make test` installs besides: EXTRAS=dev,ray,onnx,openvino,heif,identity also tests what those extras bring.
EXTRAS ?= dev
TORCH_INDEX ?=
BIN := $(VENV)/bin

.PHONY: demo test check serve clean

demo: $(VENV)/.installed
	$(BIN)/python -m scripts.demo --out demo

test: $(VENV)/.installed-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

check: test

serve: $(VENV)/.installed-serve
	$(BIN)/python -m serving

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; choose one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: $(VENV)/bin/python
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install --quiet --index-url $(TORCH_INDEX) torch torchvision,)
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-serve

$(VENV)/.installed-serve: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --editable '.[serve]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) demo build dist
