"""Pages made from code are current."""

from pathlib import Path

import pytest

from router.cli.reference import PAGES

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_page_is_current(name):
    fix = "run python -m router.cli.reference"
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), fix


def test_every_link_in_the_docs_leads_somewhere():
    import re

    root = FOLDER.parents[1]
    pages = [*root.glob("docs/**/*.md"), root / "README.md"]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
