#!/bin/sh
# torch.sh cpu|cuda INDEX PIP…: install the version of torch that constraints.txt names.
set -eu
kind=$1 index=$2
shift 2
version=$(sed -n 's/^torch==//p' constraints.txt)
case $kind in
  # Without dependencies: what it needs comes from the usual index, with everything else.
  cpu) "$@" install --quiet --retries 1 --no-deps --extra-index-url "$index" "torch==$version+cpu" ;;
  cuda) "$@" install --quiet --constraint constraints.txt "torch==$version" ;;
  *) echo "TORCH is cpu or cuda, not $kind" >&2; exit 2 ;;
esac
