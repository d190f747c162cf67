"""Hooks of MkDocs: the README's last section is the navigation, and files outside `docs/` that are linked get pages.

The pages are the repository's files; only the addresses in their links change.
"""

import json
import posixpath
import re
import subprocess
import tomllib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from afterword.serving.api_markdown import http_api
from tools.diagrams import DIAGRAM, picture_of, title_of

ROOT = Path(__file__).parents[1]
DOCS = "docs"
README = "README.md"
ELSEWHERE = "repository"
"""Folder of the site for files outside `docs/`."""
OPENAPI, HTTP_API = "docs/reference/openapi.json", "reference/http-api.md"
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)#:\s]+)(?P<after>(?:#[^)\s]*)?\))")
NAMED = re.compile(r"\[(?P<name>[^\]]+)\]\((?P<target>[^)#:\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]+src=["']?(https?:)?//|<link[^>]+stylesheet[^>]+href=["']?(https?:)?//"""
)
BEFORE_LIST = re.compile(r"^(?![-*] |\d+\. )\S.*\n(?=[-*] |\d+\. )", re.MULTILINE)
INDENTED = re.compile(r"^ {2}(?= *\S)", re.MULTILINE)
CODE_FENCE = "`" * 5
DOCUMENTATION = "\n## Documentation\n"
"""Heading of the README's last section."""
LOOKED_UP = ("Reference", "Internals", "Project")
"""Sections whose pages rank after the others in a search."""
LANGUAGES = {
    ".py": "python",
    ".json": "json",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".ts": "typescript",
    ".js": "javascript",
    ".sh": "bash",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take navigation and version from the repository."""
    sections = sections_of((ROOT / README).read_text())
    config.extra["looked_up"] = {page_of(path) for title in LOOKED_UP for _, path in sections[title]}
    pages = {title: [(name, pages_of(path)) for name, path in links] for title, links in sections.items()}
    config.nav = [page_of(README)] + [{title: [_entry(*one) for one in links]} for title, links in pages.items()]
    listed = {title: [uri for _, uris in links for uri in uris] for title, links in pages.items()}
    config.plugins["llmstxt"].config.sections = {"Start": [page_of(README)], **listed}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.copyright = f"Afterword {project['version']}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the HTTP API's page, and a page for each linked file and folder that has none."""
    waiting = [README, *(f"{DOCS}/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if files.get_file_from_path(page_of(path)) is None:
            files.append(_made(config, page_of(path), content_of(path)))
        linked = set(links_of(path)) - seen
        seen |= linked
        waiting += linked
    files.append(_made(config, HTTP_API, http_api(json.loads((ROOT / OPENAPI).read_text()), "openapi.json")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Point links to the site's own pages, make lists and diagrams work, and rank the page in the search."""
    uri: str = page.file.src_uri
    page.meta["search"] = search_rank(uri, config.extra["looked_up"])
    path = path_of(uri)
    within = path if (ROOT / path).is_dir() else posixpath.dirname(path)

    def readdressed(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(within, link["target"]))
        return f"{link['before']}{posixpath.relpath(page_of(target), posixpath.dirname(uri))}{link['after']}"

    def drawn(diagram: re.Match[str]) -> str:
        picture = picture_of(diagram["source"])
        if not (ROOT / picture).exists():
            raise PluginError(f"a diagram in {path} has no picture: make diagrams")
        return f"![{title_of(diagram['source'])}]({posixpath.relpath(picture, within or '.')})"

    return _outside_fences(lambda text: with_lists(LINK.sub(readdressed, text)), DIAGRAM.sub(drawn, markdown))


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that loads anything from elsewhere. Raises: PluginError."""
    for page in Path(config.site_dir).rglob("*.html"):
        if found := LOADED.search(page.read_text()):
            raise PluginError(f"{page} loads something from elsewhere: {found[0]}")


def search_rank(uri: str, looked_up: Collection[str]) -> dict[str, bool | float]:
    """Rank how-tos first and reference and internals last; exclude files from outside `docs/`."""
    if uri.startswith(f"{ELSEWHERE}/"):
        return {"exclude": True}
    return {"boost": 0.5 if uri in looked_up or uri.startswith("adr/") else 2}


def sections_of(readme: str) -> dict[str, list[tuple[str, str]]]:
    """Return names and paths of the pages in the README's last section, by the title of their paragraph."""
    paragraphs = readme.partition(DOCUMENTATION)[2].split("\n\n")
    titled = [(re.match(r"\s*\*\*(.+?)\*\*:", paragraph), paragraph) for paragraph in paragraphs]
    return {title[1]: [(link["name"], link["target"]) for link in NAMED.finditer(p)] for title, p in titled if title}


def pages_of(path: str) -> list[str]:
    """Return the page of a file, or of a folder and, below `docs/`, of the pages in it."""
    inner = sorted((ROOT / path).glob("*.md")) if path.startswith(f"{DOCS}/") and (ROOT / path).is_dir() else []
    return [page_of(path), *(page_of(f"{path}/{page.name}") for page in inner)]


def _entry(name: str, uris: list[str]) -> dict[str, str | list[str]]:
    return {name[:1].upper() + name[1:]: uris if len(uris) > 1 else uris[0]}


def with_lists(text: str) -> str:
    """Format lists as Python-Markdown needs them: after an empty line, with contents indented by four spaces."""
    return INDENTED.sub("    ", BEFORE_LIST.sub(r"\g<0>\n", text))


def page_of(path: str) -> str:
    """Return the site's source path, as MkDocs names it, for a file or folder of the repository."""
    if path == README:
        return "index.md"
    if path == OPENAPI:
        return HTTP_API
    below = path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"{ELSEWHERE}/{path}"
    if (ROOT / path).is_dir():
        return f"{below}/index.md"
    is_asset = path.startswith(f"{DOCS}/") or path.endswith(".md")
    return below if is_asset else f"{below}.md"


def path_of(uri: str) -> str:
    """Return the repository's file or folder that a page of the site is made from."""
    if uri == page_of(README):
        return README
    path = uri.removeprefix(f"{ELSEWHERE}/") if uri.startswith(f"{ELSEWHERE}/") else f"{DOCS}/{uri}"
    candidates = path, path.removesuffix("/index.md"), path.removesuffix(".md")
    return next((candidate for candidate in candidates if (ROOT / candidate).exists()), path)


def content_of(path: str) -> str:
    """Return a page's Markdown: the file itself, its code in a block, or a list of a folder's files."""
    file = ROOT / path
    if file.is_dir():
        return f"# `{path}`\n\n" + "\n".join(f"- [{name}]({name})" for name in _tracked(file))
    if file.suffix == ".md":
        return file.read_text()
    return f"# `{path}`\n\n{CODE_FENCE}{LANGUAGES.get(file.suffix, '')}\n{file.read_text().rstrip()}\n{CODE_FENCE}\n"


def links_of(path: str) -> Iterable[str]:
    """Return the files and folders of the repository that a page links to. MkDocs reports wrong links."""
    file = ROOT / path
    if not file.is_dir() and file.suffix != ".md":
        return []
    within = path if file.is_dir() else posixpath.dirname(path)
    targets = [link["target"] for link in LINK.finditer(FENCE.sub("", content_of(path)))]
    paths = [posixpath.normpath(posixpath.join(within, target)) for target in targets]
    return [linked for linked in paths if (ROOT / linked).exists() and not _is_asset(linked)]


def _is_asset(path: str) -> bool:
    return path.startswith(f"{DOCS}/") and (ROOT / path).is_file() and not path.endswith(".md")


def _tracked(folder: Path) -> list[str]:
    names = subprocess.run(["git", "ls-files", "."], cwd=folder, capture_output=True, text=True, check=True).stdout
    return sorted({name.partition("/")[0] for name in names.splitlines()})


def _made(config: MkDocsConfig, uri: str, content: str) -> File:
    return File.generated(config, uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV)


def _outside_fences(change: Callable[[str], str], text: str) -> str:
    parts, done = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[done : fence.start()]), fence[0]]
        done = fence.end()
    return "".join([*parts, change(text[done:])])
