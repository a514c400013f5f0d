#!/bin/sh
# Makes .env from .env.example with random secrets. What .env says already stays; so this may be
# repeated, after an upgrade for example, which then adds what is new.
#
#   deploy/configure.sh [FILE]
set -eu
umask 077
here=$(cd "$(dirname "$0")" && pwd)
file=${1:-$here/.env}
secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }

new=$(mktemp "$file.XXXXXX")
trap 'rm -f "$new"' EXIT
if [ -f "$file" ]; then cat "$file" >"$new"; fi
added=
while IFS= read -r line; do
  name=${line%%=*}
  case $line in
    '#'* | '')
      # Comments belong to the first version of the file.
      if [ ! -f "$file" ]; then printf '%s\n' "$line" >>"$new"; fi
      continue ;;
  esac
  if grep -q "^$name=" "$new"; then continue; fi
  value=${line#*=}
  case $name in
    ASSAY_WORKER_TOKEN) value=asw_$(secret) ;;
    *) if [ -z "$value" ]; then value=$(secret); fi ;;
  esac
  printf '%s=%s\n' "$name" "$value" >>"$new"
  added="$added $name"
done <"$here/.env.example"
chmod 600 "$new"
mv "$new" "$file"
trap - EXIT
echo "$file:${added:- nothing to add}"
