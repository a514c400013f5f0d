#!/bin/sh
# Writes constraints.txt: the newest versions that pyproject.toml allows. torch stays as it is, since
# results are compared within a version of it: change its line by hand, and here and in
# scripts/install.sh at the same time. Needs uv (pip install uv).
set -eu
cd "$(dirname "$0")/.."
held=$(mktemp)
made=$(mktemp)
trap 'rm -f "$held" "$made"' EXIT
grep '^torch==' deploy/constraints.txt >"$held"
echo hatchling | uv pip compile --quiet --python-version 3.11 --python-platform linux \
  --extra implementer --extra scheduler --extra worker --extra environments --extra gpu \
  --constraint "$held" --no-header --no-annotate --output-file "$made" pyproject.toml -
{ echo "# The versions that images hold; deploy/lock.sh makes them anew."; cat "$made"; } \
  >deploy/constraints.txt
