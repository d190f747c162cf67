#!/usr/bin/env bash
# cluster.sh PREFIX: PREFIX/bin/cluster, the API server, the controllers and etcd of Kubernetes in one program, from their Go modules; and
# PREFIX/crds, the definitions of custom resources that the chart can make. Needs go >= 1.26, and a network the first time.
set -euo pipefail
PREFIX=$1
HERE=$(cd "$(dirname "$0")" && pwd)
KUBERNETES=1.37.2
OPERATOR=v0.85.0 KEDA=v2.21.0 GATEWAY=v1.3.0     # as in tests/deploy/tools/helm.sh
export GOWORK=off CGO_ENABLED=0 GOFLAGS="-buildvcs=false -modcacherw"

source_of() { # MODULE@VERSION: its directory
  go mod download -json "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])'
}

build() {
  local copy source version="k8s.io/component-base/version"
  copy=$(mktemp -d)
  source=$(source_of "k8s.io/kubernetes@v$KUBERNETES")
  cp "$HERE/main.go" "$source/go.sum" "$copy"
  chmod u+w "$copy/go.sum"
  # its own parts are released as modules too: v0.Y.Z for Kubernetes 1.Y.Z
  sed -e 's#^module .*#module afterword.test/cluster#' -e "s#=> ./staging/src/\(k8s.io/[a-z-]*\)#=> \1 v0.${KUBERNETES#1.}#" \
    "$source/go.mod" > "$copy/go.mod"
  echo "require k8s.io/kubernetes v$KUBERNETES" >> "$copy/go.mod"
  # a compiler that optimizes takes longer than these programs ever run
  (cd "$copy" && nice -n 10 go build -mod=mod -trimpath -gcflags='all=-dwarf=false -N -l' -o "$1" \
    -ldflags="-s -w -X $version.gitVersion=v$KUBERNETES -X $version.gitMajor=1 -X $version.gitMinor=$(cut -d. -f2 <<<"$KUBERNETES")" .)
  rm -rf "$copy"
}

definitions() { # DIRECTORY
  local monitoring keda gateway
  monitoring=$(source_of github.com/prometheus-operator/prometheus-operator@$OPERATOR)/example/prometheus-operator-crd
  keda=$(source_of github.com/kedacore/keda/v2@$KEDA)/config/crd/bases
  gateway=$(source_of sigs.k8s.io/gateway-api@$GATEWAY)/config/crd/standard
  mkdir -p "$1"
  cp "$monitoring"/monitoring.coreos.com_{servicemonitors,prometheusrules}.yaml "$keda"/keda.sh_scaledobjects.yaml \
    "$gateway"/gateway.networking.k8s.io_httproutes.yaml "$1"
  chmod u+w "$1"/*
}

mkdir -p "$PREFIX/bin"
[ -x "$PREFIX/bin/cluster" ] || build "$PREFIX/bin/cluster"
definitions "$PREFIX/crds"
