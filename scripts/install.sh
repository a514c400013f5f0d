#!/usr/bin/env bash
# Create a virtual environment and install Assay with all its services and tools.
#
# TORCH=cpu (default): a build without CUDA. PyPI's Linux build of torch brings several gigabytes of
#   CUDA packages, so on Linux the "+cpu" build is taken, from wherever pip is configured to look or
#   from PyTorch's own index. On a Mac PyPI's build has no CUDA anyway.
# TORCH=cuda: the build of the registry, for a machine with an NVIDIA GPU.
set -euo pipefail

PYTHON="${PYTHON:-python3}"
VENV="${VENV:-.venv}"
TORCH="${TORCH:-cpu}"
TORCH_VERSION="${TORCH_VERSION:-2.13.0}"
TORCH_INDEX="${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"

say() { printf '\033[1m%s\033[0m\n' "$*"; }

"$PYTHON" - <<'PY' || { echo "Assay needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
import sys
sys.exit(sys.version_info < (3, 11))
PY

started=$(date +%s)
say "Creating $VENV"
"$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }

say "Installing torch ($TORCH)"
if [ "$TORCH" = cpu ] && [ "$(uname -s)" = Linux ]; then
  # Alone and without dependencies: only this package may come from the second index.
  pip install --quiet --retries 1 --no-deps --extra-index-url "$TORCH_INDEX" \
    "torch==${TORCH_VERSION}+cpu"
else
  pip install --quiet "torch==${TORCH_VERSION}"
fi

say "Installing Assay"
pip install --quiet --editable '.[dev]'
say "Installed in $(( $(date +%s) - started )) s"
