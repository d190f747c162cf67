"""The router of the page: all screens, and the static files they load."""

from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse

from afterword.serving.page import (
    changing,
    chat,
    conversation,
    finding,
    live,
    operating,
    people,
    visitor,
)
from afterword.serving.page.rendering import STATIC, PageRoute, static_version

SCREENS = (visitor, live, conversation, changing, people, chat, finding, operating)
ONE_YEAR = "public, max-age=31536000, immutable"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/static/{version}/{name}")
async def send_static_file(version: str, name: str) -> FileResponse:
    """Send a static file. Its version is in the path, so browsers may cache it."""
    path = FILES.get(name)
    if path is None or version != static_version():
        raise HTTPException(404)
    return FileResponse(path, media_type=TYPES[path.suffix], headers={"Cache-Control": ONE_YEAR})


FILES: dict[str, Path] = {path.name: path for path in STATIC.iterdir() if path.suffix in TYPES}

for screen in SCREENS:
    router.include_router(screen.router)
