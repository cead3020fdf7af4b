#!/bin/sh
# Installs the service into a virtual environment, in three steps from what changes least to what changes most.
#   install.sh VENV torch|dependencies|package
# Run from the folder that holds pyproject.toml. TORCH_INDEX chooses torch's build; empty means PyPI.
set -eu
venv=$1
here=$(dirname "$0")

requirements() {
    "$venv/bin/python" "$here/requirements.py" pyproject.toml "$1" > "$venv/requirements-$1.txt"
}

case $2 in
torch)
    requirements torch
    if [ -n "${TORCH_INDEX:-}" ]; then
        "$venv/bin/python" -m pip install --index-url "$TORCH_INDEX" -r "$venv/requirements-torch.txt"
    else
        "$venv/bin/python" -m pip install -r "$venv/requirements-torch.txt"
    fi
    ;;
dependencies)
    requirements dependencies
    "$venv/bin/python" -m pip install -r "$venv/requirements-dependencies.txt"
    ;;
package)
    "$venv/bin/python" -m pip install --no-deps .
    "$venv/bin/python" -m pip check
    ;;
*)
    echo "install.sh: expected torch, dependencies or package, got $2" >&2
    exit 2
    ;;
esac
