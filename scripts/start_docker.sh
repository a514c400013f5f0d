#!/usr/bin/env bash
# Starts a Docker engine of its own for tests, unless one answers there already: no network, no
# bridge, everything below one folder, nothing shared with an engine that the machine may have.
# Needs root and the package docker.io. The engine outlives this script and its terminal.
#
#   scripts/start_docker.sh [FOLDER]      the socket is unix://FOLDER/docker.sock
set -euo pipefail

PATH="$PATH:/usr/sbin:/sbin"
folder="${1:-/tmp/assay-docker}"
socket="$folder/docker.sock"
answers() { curl -fsS --max-time 5 --unix-socket "$socket" http://engine/_ping >/dev/null 2>&1; }
command -v curl >/dev/null || answers() { docker -H "unix://$socket" version >/dev/null 2>&1; }

if answers; then
  echo "unix://$socket"
  exit 0
fi
if [ -e "$folder" ] && [ ! -O "$folder" ]; then
  echo "$folder belongs to somebody else" >&2
  exit 1
fi
# Others may look into the folder for the socket; the engine closes the rest itself.
mkdir -p "$folder"
# An engine that was killed leaves its process id behind and refuses to start where it is in use.
if [ -f "$folder/dockerd.pid" ] && ! kill -0 "$(cat "$folder/dockerd.pid")" 2>/dev/null; then
  rm -f "$folder/dockerd.pid"
fi
setsid nohup dockerd \
  --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/dockerd.pid" \
  -H "unix://$socket" --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
  --bridge=none ${SUDO_GID:+--group "$SUDO_GID"} >"$folder/dockerd.log" 2>&1 </dev/null &
for _ in $(seq 150); do
  if answers; then
    echo "unix://$socket"
    exit 0
  fi
  sleep 0.2
done
echo "the Docker engine did not start; the end of $folder/dockerd.log:" >&2
tail -n 20 "$folder/dockerd.log" >&2
exit 1
