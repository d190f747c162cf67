"""Grants the permissions of the chart's KafkaUser to a user of a broker, as Strimzi's operator would."""

from typing import Any

from aiokafka.protocol.admin import CreateAclsRequest

ANYWHERE, ALLOW = "*", 3
RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactionalId": 5}
PATTERNS = {"literal": 3, "prefix": 4}
OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10}
"""Kafka's numbers, from org.apache.kafka.common.acl.AclOperation and its neighbours."""


async def allow(admin: Any, user: str, rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        resource = rule["resource"]
        place = (RESOURCES[resource["type"]], resource["name"], PATTERNS[resource["patternType"]])
        for operation in rule["operations"]:
            request = CreateAclsRequest(*place, f"User:{user}", ANYWHERE, OPERATIONS[operation], ALLOW)
            answer = await admin._send_request(request)
            assert all(code == 0 for code, _ in answer.creation_responses), answer
