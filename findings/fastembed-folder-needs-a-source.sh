#!/usr/bin/env bash
# fastembed 0.9.1: a custom model that is loaded from a folder (specific_model_path), and so never downloaded, cannot be
# registered without the name of a place to download it from. Any text will do: it is not read.
# Seen: "ValueError: At least one source should be set, current sources: hf=None, url=None", then "registered".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet fastembed==0.9.1
seen=$("$folder/venv/bin/python" - <<'PYTHON'
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

try:
    ModelSource()
except ValueError as error:
    print(f"ValueError: {error}")
TextEmbedding.add_custom_model("mine", PoolingType.MEAN, True, ModelSource(url="nowhere"), dim=384, model_file="model.onnx")
print("registered")
PYTHON
)
echo "fastembed 0.9.1: $seen"
expected='ValueError: At least one source should be set, current sources: hf=None, url=None
registered'
test "$seen" = "$expected" || { echo "this has changed"; exit 1; }
