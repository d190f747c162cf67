"""The manual has everything of the OpenAPI document, and loads nothing from elsewhere."""

import re
from html import unescape
from html.parser import HTMLParser

from afterword.serving.app import HEADERS, routes_only
from afterword.serving.manual import example_of, rendered
from afterword.serving.requests import BODIES
from tests.unit.afterword.serving.served import serving


class Page(HTMLParser):
    """Ids, addresses and tags of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.names.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src"):
                self.addresses.append(value or "")


async def test_the_page_has_every_route_and_model_and_works_under_the_policy() -> None:
    async with serving() as served:
        answer = await served.client.get("/docs")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
        document = (await served.client.get("/openapi.json")).json()
        page = Page(answer.text)
        wanted = {operation["operationId"] for one in document["paths"].values() for operation in one.values()}
        assert wanted | {f"model-{name}" for name in document["components"]["schemas"]} <= set(page.ids)
        assert len(set(page.ids)) == len(page.ids)
        assert not page.tags & {"script", "style", "img", "iframe"}
        assert not [name for name in page.names if name == "style" or name.startswith("on")]
        links = {one.removeprefix("#") for one in page.addresses if one.startswith("#")}
        assert links <= set(page.ids)
        for address in {one for one in page.addresses if not one.startswith("#")}:
            assert re.match("/[^/]", address), address
            assert (await served.client.get(address)).status_code == 200
        style = await served.client.get("/docs/manual.css")
        assert style.headers["content-type"].startswith("text/css")
        assert "url(" not in style.text
        assert "@import" not in style.text


def test_texts_are_escaped() -> None:
    document = routes_only().openapi()
    assert "<b>&" not in rendered({**document, "info": {**document["info"], "description": "<b>&'"}})


def test_examples_are_bodies_that_are_taken() -> None:
    document = routes_only().openapi()
    for name, model in BODIES.items():
        model.model_validate(example_of({"$ref": f"#/components/schemas/{name}"}, document), strict=False)
    assert """-d '{"query":"query"}'""" in unescape(rendered(document))
