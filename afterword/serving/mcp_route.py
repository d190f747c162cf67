"""The routes of MCP over HTTP."""

import asyncio
from importlib import import_module

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from afterword.schemas.base import mended
from afterword.serving.problems import MCP_PATH, METADATA_PATH, NotFound, mcp_url
from afterword.serving.requests import SMALL_BYTES, MayReadOrWrite, read_json, services_of
from afterword.serving.tools import HEADERS_OF_CLIENTS, Toolbox, agent_principal

router = APIRouter(tags=["mcp"])


@router.api_route(METADATA_PATH, methods=["GET", "OPTIONS"], include_in_schema=False)
@router.api_route(METADATA_PATH + "{path:path}", methods=["GET", "OPTIONS"], include_in_schema=False)
async def describe_resource(request: Request, path: str = MCP_PATH) -> Response:
    """Tell MCP clients, also in a web page, which issuer's tokens `/mcp` accepts (RFC 9728)."""
    settings, url = services_of(request).settings.serve, mcp_url(request)
    if settings.auth != "jwt" or not url.endswith(path):
        raise NotFound(what="page")
    described = {
        "resource": url,
        "authorization_servers": [settings.jwt_issuer],
        "scopes_supported": ["read", "write"],
        "bearer_methods_supported": ["header"],
    }
    anybody = {
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Allow-Headers": ", ".join(HEADERS_OF_CLIENTS),
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    return JSONResponse(described, headers=anybody)


@router.post(MCP_PATH, include_in_schema=False)
async def exchange_messages(caller: MayReadOrWrite) -> Response:
    """Answer one message of an MCP client. No state is kept between messages."""
    # imported here because the SDK takes 25 MB and half a second, and in a thread so that others need not wait for it
    await asyncio.to_thread(import_module, "afterword.serving.mcp")
    from afterword.serving.mcp import McpExchange, make_server

    services = caller.services
    settings = services.settings.serve
    content = await read_json(caller.request, mended, SMALL_BYTES)
    toolbox = Toolbox(services.memory, services.outbox, agent_principal(caller, settings), services.turns)
    return McpExchange(make_server(toolbox), content, settings)
