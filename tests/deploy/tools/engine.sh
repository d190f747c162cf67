#!/usr/bin/env bash
# engine.sh up | base IMAGE | down: a container engine and a base image, where no engine runs and no registry can be
# reached. Debian, root. ENGINE_ROOT says where its data is.
#   up    Debian's Docker engine on a socket of its own; prints DOCKER_HOST
#   base  a stand-in for IMAGE (python:3.11-slim) from Debian's packages, with this machine's CAs and pip settings in it,
#         because a build must be able to fetch packages the way this machine does
#   down  stops the engine
set -euo pipefail
ROOT=${ENGINE_ROOT:?}
export DOCKER_HOST=unix://$ROOT/docker.sock
DOCKER=/usr/bin/docker   # the one that belongs to the engine: a newer one on PATH may lack the plugin that builds
mkdir -p "$ROOT"

install() {
  [ -x /usr/sbin/dockerd ] && [ -x /usr/sbin/debootstrap ] && return
  apt-get update -qq >>"$ROOT/apt.log" 2>&1
  apt-get install -y -qq --no-install-recommends docker.io debootstrap iptables >>"$ROOT/apt.log" 2>&1
}

mtu() { # a network of containers with a larger MTU than the machine's own loses packets
  local device; device=$(ip -o route get 192.0.2.1 | sed -n 's/.* dev \([^ ]*\).*/\1/p')
  cat "/sys/class/net/$device/mtu" 2>/dev/null || echo 1400
}

up() {
  install
  if ! $DOCKER info >/dev/null 2>&1; then
    nohup dockerd -H "$DOCKER_HOST" --data-root "$ROOT/data" --exec-root "$ROOT/exec" -p "$ROOT/pid" --mtu "$(mtu)" \
      >"$ROOT/dockerd.log" 2>&1 </dev/null &
    for _ in $(seq 120); do $DOCKER info >/dev/null 2>&1 && break; sleep .5; done
    $DOCKER info >/dev/null 2>&1 || { tail -5 "$ROOT/dockerd.log" >&2; exit 1; }
  fi
  echo "$DOCKER_HOST"
}

base() {
  $DOCKER image inspect "$1" >/dev/null 2>&1 && return
  rm -rf "$ROOT/rootfs"
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,python3-pip bookworm "$ROOT/rootfs" \
    >"$ROOT/debootstrap.log" 2>&1
  ln -sf python3 "$ROOT/rootfs/usr/bin/python"
  cp /etc/ssl/certs/ca-certificates.crt "$ROOT/rootfs/etc/ssl/certs/ca-certificates.crt"
  for file in /etc/pip.conf ~/.config/pip/pip.conf ~/.pip/pip.conf; do
    [ ! -f "$file" ] || cat "$file" >> "$ROOT/rootfs/etc/pip.conf"
  done
  rm -rf "$ROOT"/rootfs/var/cache/apt/* "$ROOT"/rootfs/var/lib/apt/lists/*
  tar -C "$ROOT/rootfs" -c . | $DOCKER import -c 'CMD ["python3"]' - "$1" >/dev/null
  rm -rf "$ROOT/rootfs"
}

down() { # its own process, by the number that it wrote itself
  [ ! -f "$ROOT/pid" ] || kill "$(cat "$ROOT/pid")"
}

"$@"
