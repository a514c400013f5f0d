#!/bin/sh
# What the entry point of Postgres' own image does: a cluster with one user and one database.
set -eu
data=/var/lib/postgresql/data
if [ ! -s "$data/PG_VERSION" ]; then
  printf '%s' "$POSTGRES_PASSWORD" >/tmp/password
  initdb --pgdata "$data" --username "$POSTGRES_USER" --pwfile /tmp/password \
    --auth-host scram-sha-256 --auth-local trust --encoding UTF8 --no-instructions
  pg_ctl --pgdata "$data" --options "-c listen_addresses=''" --wait start
  createdb --host /run/postgresql --username "$POSTGRES_USER" "$POSTGRES_DB"
  pg_ctl --pgdata "$data" --wait stop
  echo 'host all all all scram-sha-256' >>"$data/pg_hba.conf"
fi
exec postgres -D "$data" -c listen_addresses='*' -c unix_socket_directories=/run/postgresql
