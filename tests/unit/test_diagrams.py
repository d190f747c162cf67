"""Diagrams of the documentation have pictures, which the site shows without loading anything from elsewhere."""

import re

from tools.diagrams import PICTURES, ROOT, diagrams, picture_of, title_of


def test_every_diagram_has_picture_and_title() -> None:
    sources = list(diagrams())
    kept = {str(path.relative_to(ROOT)) for path in (ROOT / PICTURES).glob("diagram-*.svg")}
    assert {picture_of(source) for source in sources} == kept, "make diagrams"
    assert all(map(title_of, sources))


def test_pictures_load_nothing() -> None:
    for source in diagrams():
        picture = (ROOT / picture_of(source)).read_text()
        assert not re.search(r"<script|<image|<foreignObject|@import|url\((?!#)|href=.https?:", picture)
