#!/usr/bin/env bash
# Fetches Docker Compose 2 from Debian, for tests on machines whose release has only version 1, and
# prints where it is. Installs nothing: one program, below one folder.
#
#   scripts/install_compose.sh [FOLDER]
set -euo pipefail

folder="${1:-/tmp/assay-compose}"
program="$folder/docker-compose"
if ! [ -x "$program" ]; then
  mkdir -p "$folder/lists/partial"
  echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main' \
    >"$folder/trixie.list"
  options=(-qq -o "Dir::Etc::sourcelist=$folder/trixie.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$folder/lists" -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache="
    -o APT::Sandbox::User=root)
  cd "$folder"
  apt-get "${options[@]}" update >&2
  apt-get "${options[@]}" download docker-compose >&2
  dpkg-deb -x docker-compose_*.deb unpacked
  mv unpacked/usr/libexec/docker/cli-plugins/docker-compose "$program"
  rm -rf unpacked lists docker-compose_*.deb trixie.list
fi
echo "$program"
