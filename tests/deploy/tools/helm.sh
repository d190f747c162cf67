#!/usr/bin/env bash
# helm.sh PREFIX: helm (and its oldest and next versions), helm-unittest, kubeconform, crane and promtool from their Go modules, and the schemas that kubeconform
# compares with. Needs go >= 1.26, python3 with venv, and a network the first time; PREFIX is worth keeping.
set -euo pipefail
PREFIX=$1
HERE=$(cd "$(dirname "$0")" && pwd)
HELM=v3.22.0 OLDEST_HELM=v3.14.4 NEXT_HELM=v4.3.1 UNITTEST=v1.1.2 KUBECONFORM=v0.8.0 PROMETHEUS=v0.315.0 CRANE=v0.22.1
OPERATOR=v0.85.0 KEDA=v2.21.0 GATEWAY=v1.3.0     # whose custom resources the chart can make
SCHEMAS=1.37.0                    # kubernetes-validate, which carries the schemas of Kubernetes 1.25 to 1.37
KUBERNETES="1.33.0 1.37.0"

mkdir -p "$PREFIX/bin" "$PREFIX/plugins/unittest"
export GOWORK=off CGO_ENABLED=0 GOFLAGS="-buildvcs=false -modcacherw -gcflags=all=-dwarf=false"  # nobody debugs them

build() { # COMMAND PACKAGE@VERSION [FOLDER]
  local folder=$PREFIX/${3:-bin}
  [ -x "$folder/$1" ] || GOBIN=$folder nice -n 10 go install -trimpath -ldflags='-s -w' "$2"
}

source_of() { # MODULE@VERSION: its directory
  go mod download -json "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])'
}

# FILE MODULE@VERSION FOLDER [TAGS]: where go.mod replaces modules, "go install" refuses; "go build" in a copy does not
build_copy() {
  [ -x "$1" ] && return
  local copy; copy=$(mktemp -d)
  cp -r "$(source_of "$2")" "$copy/src"
  chmod -R u+w "$copy"
  (cd "$copy/src" && nice -n 10 go build -tags "${4:-}" -trimpath -ldflags='-s -w' -o "$1" "$3")
  rm -rf "$copy"
}

schemas() {
  [ -f "$PREFIX/schemas/done-$GATEWAY" ] && return
  local venv=$PREFIX/venv
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet "kubernetes-validate==$SCHEMAS" pyyaml
  # shellcheck disable=SC2086 # versions are words
  "$venv/bin/python" "$HERE/kubernetes_schemas.py" "$PREFIX/schemas" $KUBERNETES
  "$venv/bin/python" "$HERE/crd_schemas.py" "$PREFIX/schemas/crds" \
    "$(source_of github.com/prometheus-operator/prometheus-operator@$OPERATOR)"/example/prometheus-operator-crd/*.yaml \
    "$(source_of github.com/kedacore/keda/v2@$KEDA)"/config/crd/bases/*.yaml \
    "$(source_of sigs.k8s.io/gateway-api@$GATEWAY)"/config/crd/standard/gateway.networking.k8s.io_httproutes.yaml
  rm -rf "$venv"
  touch "$PREFIX/schemas/done-$GATEWAY"
}

build helm helm.sh/helm/v3/cmd/helm@$HELM
build helm helm.sh/helm/v3/cmd/helm@$OLDEST_HELM helm-3.14
build helm helm.sh/helm/v4/cmd/helm@$NEXT_HELM helm-4
build kubeconform github.com/yannh/kubeconform/cmd/kubeconform@$KUBECONFORM
build crane github.com/google/go-containerregistry/cmd/crane@$CRANE  # has a registry
build_copy "$PREFIX/plugins/unittest/untt" github.com/helm-unittest/helm-unittest@$UNITTEST ./cmd/helm-unittest
schemas
cat > "$PREFIX/plugins/unittest/plugin.yaml" <<YAML
name: unittest
version: "${UNITTEST#v}"
usage: unit tests of charts
description: helm-unittest
ignoreFlags: false
command: "\$HELM_PLUGIN_DIR/untt"
YAML
build_copy "$PREFIX/bin/promtool" github.com/prometheus/prometheus@$PROMETHEUS ./cmd/promtool 'remove_all_sd enable_dns_sd'
