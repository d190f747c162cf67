"""Permissions on topics. aiokafka knows the requests but has no method for them."""

from typing import Any

from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

TOPIC, LITERAL = 2, 3
ANY, ALL, WRITE = 1, 2, 4
DENY, ALLOW = 2, 3
NOBODY_IN_PARTICULAR, ANYWHERE = "User:ANONYMOUS", "*"
"""Principal and host of everybody on the plain listener."""


async def forbid_writing(admin: Any, topic: str) -> None:
    """Deny writing and allow everything else; once any rule exists, whatever no rule allows is denied."""
    for operation, permission in ((ALL, ALLOW), (WRITE, DENY)):
        rule = (TOPIC, topic, LITERAL, NOBODY_IN_PARTICULAR, ANYWHERE, operation, permission)
        answer = await admin._send_request(CreateAclsRequest(*rule))
        assert all(code == 0 for code, _ in answer.creation_responses), answer


async def allow_again(admin: Any, topic: str) -> None:
    answer = await admin._send_request(DeleteAclsRequest(TOPIC, topic, LITERAL, None, None, ANY, ANY))
    assert all(code == 0 for code, *_ in answer.filter_responses), answer
