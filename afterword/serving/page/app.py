"""The router of the page's screens."""

from fastapi import APIRouter

from afterword.serving.page import changing, chat, conversation, finding, live, operating, people, visitor

SCREENS = (visitor, live, conversation, changing, people, chat, finding, operating)

router = APIRouter()
for screen in SCREENS:
    router.include_router(screen.router)
