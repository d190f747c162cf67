#!/usr/bin/env bash
# compose.sh PREFIX: PREFIX/bin/docker-compose from its Go module, where the engine has no "docker compose". Needs go.
set -euo pipefail
PREFIX=$1
MODULE=github.com/docker/compose/v2@v2.40.3
[ -x "$PREFIX/bin/docker-compose" ] && exit
mkdir -p "$PREFIX/bin"
export GOWORK=off CGO_ENABLED=0 GOFLAGS="-buildvcs=false -modcacherw"
# its go.mod replaces modules, so "go install" refuses it; "go build" in a copy does not
COPY=$(mktemp -d)
trap 'rm -rf "$COPY"' EXIT
cp -r "$(go mod download -json "$MODULE" | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')" "$COPY/src"
chmod -R u+w "$COPY"
cd "$COPY/src"
# a compiler that optimizes takes half as long again, for a program that runs a few times
nice -n 10 go build -trimpath -ldflags='-s -w' -gcflags='all=-dwarf=false -N -l' -o "$COPY/docker-compose" ./cmd
mv "$COPY/docker-compose" "$PREFIX/bin/docker-compose"
