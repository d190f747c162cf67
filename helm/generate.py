"""Generate the chart's schema, README, topics and rules from values.yaml and the code: python -m helm.generate"""

import json
from collections import Counter
from pathlib import Path

import yaml

from afterword.operating.topics import Topic, wanted_topics
from afterword.streams.roles import ROLES
from afterword.streams.settings import Kafka, Settings
from helm.cross_fields import defaults, rules
from helm.settings_schema import Schema, definitions, files_schema, reference, secrets_schema
from helm.values_file import Described, Place, described

CHART = Path(__file__).parent / "afterword"
DRAFT = "http://json-schema.org/draft-07/schema#"

HEADING = """\
# The chart of Afterword

Made by `make docs` from `values.yaml`; do not edit it by hand. To install the chart, see
[Kubernetes](../../docs/how-to/kubernetes.md).

Every setting in [settings](../../docs/settings.md) that is neither secret nor a file can be set below `settings`, or
for one role below `segmenter.settings`, `summarizer.settings`, `archiver.settings`, `ingest.settings`,
`webhooks.settings` and `server.settings`. `values.schema.json` has all of them: a misspelt name or a wrong type stops
`helm install`.

| value | default | meaning |
| --- | --- | --- |
"""


TOPICS_HEADING = (
    '# Made by "make docs" from afterword/operating/topics.py and streams/roles.py. %…% is a setting of Kafka; its '
    "default is in names.\n"
)
RULES_HEADING = '# Made by "make docs" from streams/settings.py: which settings need or exclude each other.\n'
SET_BY_VALUES = "min.insync.replicas"


def schema(text: str) -> str:
    """Build the JSON Schema of the values. Unknown names are allowed only inside Kubernetes' own objects."""
    known = described(text)
    made = _object(known, (), [place for place in known if len(place) == 1])
    made["properties"]["global"] = {"type": "object"}
    shared = definitions() | _shared(made)
    return json.dumps({"$schema": DRAFT, **made, "definitions": shared}, indent=2, ensure_ascii=False) + "\n"


def _shared(made: Schema) -> dict[str, Schema]:
    """Replace groups that several roles share by references, and return them by name."""
    roles = [role["properties"] for role in made["properties"].values() if "properties" in role]
    counts = Counter((name, json.dumps(group)) for role in roles for name, group in role.items() if _is_group(group))
    shared = {name: json.loads(group) for (name, group), number in counts.items() if number > 1}
    for role in roles:
        role.update({name: reference(name) for name, group in role.items() if group == shared.get(name)})
    return shared


def _is_group(schema: Schema) -> bool:
    return "properties" in schema


def _object(known: dict[Place, Described], place: Place, children: list[Place]) -> Schema:
    properties = {child[-1]: _schema_of(known, child) for child in children}
    made: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    description = known[place].description if place in known else ""
    return {**made, "description": description} if description else made


def _schema_of(known: dict[Place, Described], place: Place) -> Schema:
    if special := _special(place):
        return {**special, "description": known[place].description}
    if children := _children(known, place):
        return _object(known, place, children)
    return known[place].as_schema


def _special(place: Place) -> Schema | None:
    if place[-1] == "settings":
        return reference("settings")
    made = {("secrets",): secrets_schema, ("files",): files_schema, ("prometheusRule", "alerts"): alerts_schema}
    return made.get(place, lambda: None)()


def _children(known: dict[Place, Described], place: Place) -> list[Place]:
    """Find the keys directly below `place` that have a description, or contain a key that has one."""
    inside = {other[: len(place) + 1]: None for other in known if other[: len(place)] == place and other != place}
    return list(inside)


def readme(text: str) -> str:
    known = described(text)
    rows = [_row(known, value) for value in known.values()]
    return HEADING + "\n".join(row for row in rows if row) + "\n"


def _row(known: dict[Place, Described], value: Described) -> str | None:
    """Describe a value with its default, or a group with its purpose. None for a group without a description."""
    is_group = bool(_children(known, value.place))
    if is_group and not value.description:
        return None
    default = "" if is_group else f"`{json.dumps(value.default, ensure_ascii=False)}`"
    meaning = value.description or ", ".join(f"`{choice}`" for choice in value.schema.get("enum", []))
    return (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{'.'.join(value.place)}`", default, meaning)) + " |"
    )


def topics() -> str:
    """Describe the topics of `afterword topics create` for Strimzi, whatever their names.

    YAML: the default of each setting that names a topic, the roles of workers, and each topic with its configuration.
    """
    names = {name: Kafka.model_fields[name].default for name in ("messages_topic", "prefix")}
    settings = Settings(kafka=Kafka.model_construct(**{name: f"%{name}%" for name in names}))
    made = {"names": names, "roles": [*ROLES], "topics": [_described(topic) for topic in wanted_topics(settings)]}
    return TOPICS_HEADING + yaml.safe_dump(made, sort_keys=False)


def _described(topic: Topic) -> dict[str, object]:
    configs = {key: value for key, value in topic.created_with.items() if key != SET_BY_VALUES}
    return {"name": topic.name, "config": configs}


def cross_fields() -> str:
    """Return the rules between settings, and the defaults they start from, as YAML for the templates."""
    return RULES_HEADING + yaml.safe_dump({"defaults": defaults(), "rules": rules()}, sort_keys=False)


def alerts_schema() -> Schema:
    """Return the schema for changing single alerts, by the names in rules/afterword.yaml."""
    loaded = yaml.safe_load((CHART / "rules" / "afterword.yaml").read_text())
    names = [rule["alert"] for group in loaded["groups"] for rule in group["rules"]]
    properties = {
        "enabled": {"type": "boolean"},
        "threshold": {"type": "number", "minimum": 0},
        "for": {"type": "string", "pattern": "^[0-9]+(s|m|h|d)$"},
        "severity": {"type": "string", "minLength": 1},
    }
    change = {"type": "object", "additionalProperties": False, "properties": properties}
    return {"type": "object", "additionalProperties": False, "properties": dict.fromkeys(names, change)}


def generated(text: str) -> dict[str, str]:
    """Return the contents of the generated files, by their names in the chart."""
    made = {"values.schema.json": schema(text), "README.md": readme(text)}
    return {**made, "topics.yaml": topics(), "cross_fields.yaml": cross_fields()}


def write(chart: Path = CHART) -> None:
    text = (chart / "values.yaml").read_text()
    for name, content in generated(text).items():
        (chart / name).write_text(content)


if __name__ == "__main__":
    write()
