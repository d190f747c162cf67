"""crd_schemas.py DIRECTORY CRD…: write DIRECTORY/<group>/<kind>_<version>.json for each definition, without unknown
fields.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

KEPT = ("enum", "default", "required")
yaml.SafeLoader.add_constructor("tag:yaml.org,2002:value", lambda _, node: node.value)  # a bare "=" in an enum


def strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    return (
        {key: strict_part(key, value) for key, value in closed(schema).items()} if isinstance(schema, dict) else schema
    )


def strict_part(key: str, value: Any) -> Any:
    if key == "properties":
        return {name: strict(part) for name, part in value.items()}
    return value if key in KEPT else strict(value)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse fields that an object does not name, and turn Kubernetes' "integer or string" into JSON Schema's."""
    if schema.get("x-kubernetes-int-or-string"):
        rest = {key: value for key, value in schema.items() if key not in ("type", "anyOf", "format")}
        return {**rest, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    opened = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    return schema if "properties" not in schema or opened else {**schema, "additionalProperties": False}


def write(target: Path, definition: dict[str, Any]) -> None:
    spec = definition["spec"]
    folder = target / spec["group"]
    folder.mkdir(parents=True, exist_ok=True)
    for version in spec["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        known = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
        schema["properties"] = {**schema.get("properties", {}), **known}
        name = f"{spec['names']['kind'].lower()}_{version['name']}.json"
        (folder / name).write_text(json.dumps(strict(schema)))


for file in sys.argv[2:]:
    for document in yaml.safe_load_all(Path(file).read_text()):
        if document and document["kind"] == "CustomResourceDefinition":
            write(Path(sys.argv[1]), document)
