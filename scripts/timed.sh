#!/usr/bin/env bash
# Run a command, then print how long it took: scripts/timed.sh "make test" pytest …
# The exit code is the command's.
what="$1"
shift
"$@"
code=$?
echo "$what took $((SECONDS / 60)) min $((SECONDS % 60)) s"
exit "$code"
