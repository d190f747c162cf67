"""kubernetes_schemas.py DIRECTORY VERSION…: write the schemas of the package kubernetes-validate where kubeconform
looks.
"""

import json
import sys
from pathlib import Path

import kubernetes_validate

SOURCE = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"


def lay_out(target: Path, version: str) -> None:
    folder = target / f"v{version}-standalone-strict"
    folder.mkdir(parents=True, exist_ok=True)
    for file in (SOURCE / f"v{version}-local-strict").iterdir():
        schema = json.loads(file.read_text().replace('"/api/_definitions.json', '"_definitions.json'))
        schema.pop("$id", None)
        (folder / file.name).write_text(json.dumps(schema))


for name in sys.argv[2:]:
    lay_out(Path(sys.argv[1]), name)
