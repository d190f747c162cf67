"""Pictures of the Mermaid diagrams in README and docs, for the site, which loads nothing from elsewhere.

`make diagrams` draws them with Mermaid from npm in an installed Chromium. A picture is named after the hash of its
source.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURES = "docs/images"
DIAGRAM = re.compile(r"^```mermaid\n(?P<source>.*?)^```$", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r"^ *accTitle: (?P<title>[^\[\]\n]+)$", re.MULTILINE)
LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}(?:e-\d+)?")
MERMAID = "mermaid@11.12.0"
CONFIGURATION = {
    "startOnLoad": False,
    "theme": "neutral",
    "htmlLabels": False,  # text that every SVG viewer shows
    "flowchart": {"htmlLabels": False},
    "deterministicIds": True,
    "fontFamily": "system-ui, sans-serif",
}


def picture_of(source: str) -> str:
    """Return the path of a diagram's picture in the repository."""
    return f"{PICTURES}/diagram-{hashlib.sha256(source.encode()).hexdigest()[:12]}.svg"


def title_of(source: str) -> str:
    """Return a diagram's `accTitle`, which screen readers read. Raises: ValueError if it has none."""
    title = TITLE.search(source)
    if title is None:
        raise ValueError("a diagram has no accTitle")
    return title["title"]


def diagrams() -> Iterator[str]:
    """Yield the source of each diagram."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for diagram in DIAGRAM.finditer(page.read_text()):
            yield diagram["source"]


def main() -> None:
    """Draw diagrams that have no picture, and remove pictures that no diagram uses."""
    sources = {ROOT / picture_of(source): source for source in diagrams()}
    for picture in (ROOT / PICTURES).glob("diagram-*.svg"):
        if picture not in sources:
            picture.unlink()
    missing = {picture: source for picture, source in sources.items() if not picture.exists()}
    if missing:
        draw(missing)


def draw(missing: dict[Path, str]) -> None:
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    npm = shutil.which("npm")
    if browser_path is None or npm is None:
        sys.exit("drawing diagrams needs npm and a Chromium")
    directory = ROOT / "build" / "mermaid"
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run([npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", MERMAID], cwd=directory, check=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(path=directory / "node_modules" / "mermaid" / "dist" / "mermaid.min.js")
        page.evaluate("configuration => mermaid.initialize(configuration)", CONFIGURATION)
        for picture, source in missing.items():
            drawn: str = page.evaluate("async source => (await mermaid.render('diagram', source)).svg", source)
            picture.write_text(shortened(on_white(drawn)) + "\n")
        browser.close()


def on_white(picture: str) -> str:
    """Give a picture a background, so that it can be read in the site's dark scheme too."""
    return picture.replace('style="', 'style="background: white; ', 1)


def shortened(picture: str) -> str:
    """Round coordinates to a tenth of a pixel, which shrinks the file to a fifth."""
    return LONG_NUMBER.sub(lambda number: f"{float(number[0]):.1f}", picture)


if __name__ == "__main__":
    main()
