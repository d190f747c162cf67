"""The topics as the chart needs them for Strimzi: those of `afterword topics create`, whatever they are called."""

import yaml

from afterword.streams.settings import Kafka, Settings
from afterword.topic_specs import Topic, wanted_topics

NAMED_BY = ("_topic", "_id")
OF_ALL = "min.insync.replicas"
HEADING = (
    '# Made by "make docs" from afterword/topic_specs.py. %…% stands for a setting of Kafka; its default is in names.\n'
)


def topics() -> str:
    """YAML: the defaults of the names, and each topic with its own configuration."""
    names = {name: field.default for name, field in Kafka.model_fields.items() if name.endswith(NAMED_BY)}
    named = {name: default for name, default in names.items() if isinstance(default, str)}
    settings = Settings(kafka=Kafka(**{name: f"%{name}%" for name in named}))
    made = {"names": named, "topics": [_described(topic) for topic in wanted_topics(settings)]}
    return HEADING + yaml.safe_dump(made, sort_keys=False)


def _described(topic: Topic) -> dict[str, object]:
    return {"name": topic.name, "config": {key: value for key, value in topic.configs.items() if key != OF_ALL}}
